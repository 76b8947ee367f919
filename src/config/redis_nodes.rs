//! Several Redis processes in one setting: the nodes of a Cluster, or Sentinels. As a URL with several hosts,
//! `rediss://user:password@host:port,host:port/3`, or as `host:port,host:port`; each part goes through the same checks
//! as the URL of one Redis.

use std::fmt;

use url::Url;

use super::{RedisUrl, parse::Wrong};

/// Addresses that share scheme, user, password and database. Neither `Debug` nor `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisNodes {
    /// One for each address, with all that they share.
    urls: Vec<Url>,
    database: u32,
}

impl RedisNodes {
    /// Parses a list; a host without a port gets this one.
    ///
    /// # Errors
    /// What is wrong, without any part of the text: it may hold a password.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, Wrong> {
        let scheme = text.split_once("://").map_or("redis", |(scheme, _)| scheme);
        let (mut urls, mut database) = (Vec::<Url>::new(), 0);
        let (mut user, mut password) = (String::new(), None::<String>);
        for item in text.split(',').map(str::trim) {
            let item = if item.contains("://") { item.to_owned() } else { format!("{scheme}://{item}") };
            let one = RedisUrl::parse(&item).map_err(|wrong| {
                format!(
                    "has a part that {wrong} (a list is host:port,host:port; a comma in a password is written as %2C)"
                )
            })?;
            let mut url = Url::parse(one.expose()).map_err(|_| "has a part that is not a URL".to_owned())?;
            if !matches!(url.scheme(), "redis" | "rediss" | "valkey" | "valkeys") {
                return Err("has a socket in place of host:port".to_owned());
            }
            if urls.first().is_some_and(|first| first.scheme() != url.scheme()) {
                return Err("has several schemes; TLS is for all or for none".to_owned());
            }
            if url.password().is_some() {
                let (new_user, new) = (url.username().to_owned(), url.password().map(str::to_owned));
                if password.is_some() && (new_user != user || new != password) {
                    return Err("has several users or passwords; one holds for all".to_owned());
                }
                (user, password) = (new_user, new);
            }
            if one.database() != 0 {
                if database != 0 && database != one.database() {
                    return Err("has several database numbers; one holds for all".to_owned());
                }
                database = one.database();
            }
            if url.port().is_none() {
                url.set_port(Some(default_port)).map_err(|()| "has a part without a host".to_owned())?;
            }
            if urls.iter().any(|known| (known.host(), known.port()) == (url.host(), url.port())) {
                return Err("has an address twice".to_owned());
            }
            urls.push(url);
        }
        for url in &mut urls {
            url.set_path(&if database == 0 { String::new() } else { format!("/{database}") });
            let set = url.set_username(&user).and_then(|()| url.set_password(password.as_deref()));
            set.map_err(|()| "has a part without a host".to_owned())?;
        }
        Ok(Self { urls, database })
    }

    /// A URL for each address, with user, password and database.
    #[must_use]
    pub fn expose(&self) -> Vec<String> {
        self.urls.iter().map(Url::to_string).collect()
    }

    /// The same addresses with another user and password, and no database.
    #[must_use]
    pub fn expose_with(&self, user: Option<&str>, password: Option<&str>) -> Vec<String> {
        let with = |url: &Url| {
            let mut url = url.clone();
            url.set_path("");
            let set = url.set_username(user.unwrap_or_default()).and_then(|()| url.set_password(password));
            debug_assert!(set.is_ok(), "checked by `parse`");
            url.to_string()
        };
        self.urls.iter().map(with).collect()
    }

    /// The number of the database.
    #[must_use]
    pub const fn database(&self) -> u32 {
        self.database
    }
}

/// As it could be written, with `***` for the password.
impl fmt::Display for RedisNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.urls.first() {
            write!(f, "{}://", first.scheme())?;
            if first.password().is_some() {
                write!(f, "{}:***@", first.username())?;
            }
        }
        for (i, url) in self.urls.iter().enumerate() {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or_default());
            write!(f, "{}{host}:{port}", if i == 0 { "" } else { "," })?;
        }
        if self.database == 0 { Ok(()) } else { write!(f, "/{}", self.database) }
    }
}

impl fmt::Debug for RedisNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Sentinels, and what to ask them.
#[derive(Clone)]
pub struct SentinelSettings {
    /// Where they are; user, password and database are those of the Redis that they name, TLS is for both.
    pub nodes: RedisNodes,
    /// What they call it.
    pub master: String,
    /// User for the Sentinels themselves.
    pub user: Option<String>,
    /// Password for the Sentinels themselves.
    pub password: Option<String>,
}

impl std::fmt::Debug for SentinelSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {:?}", self.master, self.nodes)
    }
}

/// The port of a Redis, and of a Sentinel, for which none is given.
pub const PORTS: (u16, u16) = (6379, 26_379);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shares_scheme_credentials_and_database() {
        for (text, urls) in [
            ("a:1,b:2", &["redis://a:1", "redis://b:2"][..]),
            ("a, b:2", &["redis://a:6379", "redis://b:2"]),
            ("[::1]:1,b", &["redis://[::1]:1", "redis://b:6379"]),
            ("rediss://me:p%2Cw@a:1,b:2", &["rediss://me:p%2Cw@a:1", "rediss://me:p%2Cw@b:2"]),
            ("redis://:pw@a:1,redis://:pw@b:2", &["redis://:pw@a:1", "redis://:pw@b:2"]),
            ("redis://:pw@a:1,b:2/8", &["redis://:pw@a:1/8", "redis://:pw@b:2/8"]),
            ("a:1/8,b:2/8", &["redis://a:1/8", "redis://b:2/8"]),
        ] {
            let nodes = RedisNodes::parse(text, 6379).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(nodes.expose(), urls, "{text}");
        }
        for bad in [
            "",
            ",",
            "a:1,",
            "a:1,a:1",
            "a:0",
            "unix:///s",
            "redis://a:1,rediss://b:2",
            "redis://:x@a,redis://:y@b",
            "a:1/8,b:2/9",
            "a:1?db=3",
            "redis://u:p,w@a:1",
            "http://a:1",
            "a:1;b:2",
            "a b",
        ] {
            assert!(RedisNodes::parse(bad, 6379).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_neither_shown_nor_given_to_sentinels() {
        let nodes = RedisNodes::parse("rediss://me:s3cret@a:1,b/8", 26379).unwrap();
        assert_eq!(format!("{nodes} {nodes:?}"), "rediss://me:***@a:1,b:26379/8 rediss://me:***@a:1,b:26379/8");
        assert_eq!(nodes.expose_with(None, None), ["rediss://a:1", "rediss://b:26379"]);
        assert_eq!(nodes.expose_with(None, Some("p@ss"))[0], "rediss://:p%40ss@a:1");
        assert_eq!(nodes.expose_with(Some("x"), Some("y"))[1], "rediss://x:y@b:26379");
        let told = RedisNodes::parse("redis://:s3cret@a:1,?,b", 1).unwrap_err();
        assert!(!told.contains("s3cret"), "{told}");
    }
}
