//! The URL of Redis: checked before redis-rs sees it, because redis-rs (and the URL standard) read past several mistakes:
//! blanks and line breaks are dropped from the middle, `?db=3` and a user without a password are ignored, a database may
//! be negative, and `#insecure` turns off the verification of certificates.

use std::fmt;

use deadpool_redis::redis::IntoConnectionInfo;
use url::{Host, Url};

use super::parse::Wrong;

/// A Redis URL that redis-rs reads as it was meant. Neither `Debug` nor `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    url: String,
    masked: String,
    database: u32,
}

impl RedisUrl {
    /// The URL with its password, for the one who connects.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.url
    }

    /// The number of the database.
    #[must_use]
    pub const fn database(&self) -> u32 {
        self.database
    }

    /// Parses `redis://`, `rediss://` (`valkey://`, `valkeys://`), `unix://` and `redis+unix://`.
    ///
    /// # Errors
    /// What is wrong, without any part of the text: it may hold a password.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("has a blank or a line break in it or at its end".to_owned());
        }
        let url = Url::parse(text).map_err(|e| {
            format!("is not a URL ({e}); characters like / ? # @ % in a password are written as %2F %3F %23 %40 %25")
        })?;
        match url.scheme() {
            "redis" | "rediss" | "valkey" | "valkeys" => Self::tcp(&url),
            "unix" | "redis+unix" | "valkey+unix" => Self::unix(&url),
            _ => Err("does not begin with redis://, rediss:// or unix://".to_owned()),
        }
    }

    fn tcp(url: &Url) -> Result<Self, Wrong> {
        match url.host() {
            None | Some(Host::Domain("")) => return Err("has no host".to_owned()),
            Some(Host::Domain(name)) if name.contains(',') => {
                return Err("names several hosts; only one Redis is supported".to_owned());
            }
            Some(_) => {}
        }
        if url.port() == Some(0) {
            return Err("has port 0".to_owned());
        }
        if url.query().is_some() {
            return Err(
                "has a query (?…), which would be ignored; the database is the path, as redis://host/3".to_owned()
            );
        }
        if url.fragment().is_some() {
            return Err("has a fragment (#…); a # in a password is written as %23".to_owned());
        }
        if !url.username().is_empty() && url.password().is_none_or(str::is_empty) {
            return Err(
                "has a user without a password; a password alone is written as redis://:password@host".to_owned()
            );
        }
        let database = database(url.path().trim_matches('/'))?;
        let mut masked = url.clone();
        if url.password().is_some() {
            masked.set_password(Some("***")).map_err(|()| "has no host".to_owned())?;
        }
        Self::checked(url.to_string(), masked.to_string(), database)
    }

    fn unix(url: &Url) -> Result<Self, Wrong> {
        if url.host_str().is_some_and(|h| !h.is_empty()) || !url.path().starts_with('/') || url.path() == "/" {
            return Err("has no absolute path of a socket, as unix:///run/redis.sock?db=0".to_owned());
        }
        // what sockaddr_un holds, with its final zero
        if url.to_file_path().is_ok_and(|path| path.as_os_str().len() > 107) {
            return Err("has a path longer than 107 bytes, which no socket can have".to_owned());
        }
        if url.fragment().is_some() {
            return Err("has a fragment (#…); a # in a password is written as %23".to_owned());
        }
        let (mut seen, mut masked, mut db) = (Vec::new(), Vec::new(), 0);
        for pair in url.query().unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "db" => db = database(value)?,
                "user" | "pass" => {}
                _ => return Err("has a parameter other than db, user and pass".to_owned()),
            }
            if seen.contains(&name) {
                return Err(format!("has the parameter {name} twice"));
            }
            seen.push(name);
            masked.push(if name == "pass" { "pass=***" } else { pair });
        }
        if seen.contains(&"user") && !seen.contains(&"pass") {
            return Err("has a user without a password (pass=…)".to_owned());
        }
        let (mut open, mut shown) = (url.clone(), url.clone());
        // redis-rs reads the query as a form, where a plus is a blank
        open.set_query(url.query().map(|q| q.replace('+', "%2B")).filter(|q| !q.is_empty()).as_deref());
        shown.set_query(Some(masked.join("&")).filter(|q| !q.is_empty()).as_deref());
        Self::checked(open.to_string(), shown.to_string(), db)
    }

    /// The last word is redis-rs's own.
    fn checked(url: String, masked: String, database: u32) -> Result<Self, Wrong> {
        let info =
            url.as_str().into_connection_info().map_err(|_| "is not a URL that the Redis client takes".to_owned())?;
        if info.redis_settings().db() != i64::from(database) {
            return Err("has a database number that the Redis client reads differently".to_owned());
        }
        Ok(Self { url, masked, database })
    }
}

/// `""` is database 0. How many there are is up to the server, which says so when it is asked to select one.
fn database(text: &str) -> Result<u32, Wrong> {
    if text.is_empty() {
        return Ok(0);
    }
    let digits = text.bytes().all(|b| b.is_ascii_digit()).then_some(text);
    let number = digits.and_then(|digits| digits.parse::<u32>().ok()).filter(|n| *n <= 65_535);
    number.ok_or_else(|| "has a database that is not a number from 0 to 65535".to_owned())
}

/// The URL with `***` for its password.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked)
    }
}

/// `***` for what stands between `://` and `@` in any text, for messages that others wrote.
#[must_use]
pub fn mask_userinfo(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`')).unwrap_or(after.len());
        rest = after;
        if let Some(sign) = after[..end].rfind('@') {
            out.push_str("***");
            rest = &after[sign..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c179_the_right_database_or_a_clear_refusal() {
        for (text, database) in [
            ("redis://h:6379", 0),
            ("redis://h:6379/", 0),
            ("redis://h:6379//", 0),
            ("redis://h:6379/0", 0),
            ("redis://h:6379/5", 5),
            ("redis://h:6379/5/", 5),
            ("redis://h:6379/15", 15),
            ("redis://h:6379/16", 16),
            ("redis://h", 0),
            ("redis://[::1]:6379/2", 2),
            ("redis://[::1]/2", 2),
            ("REDIS://h:6379/3", 3),
            ("rediss://h/1", 1),
            ("unix:///run/redis.sock", 0),
            ("unix:///run/redis.sock?db=4", 4),
            ("redis+unix:///run/redis.sock?db=4&pass=x", 4),
        ] {
            let url = RedisUrl::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let info = url.expose().into_connection_info().unwrap();
            assert_eq!((url.database(), info.redis_settings().db()), (database, i64::from(database)), "{text}");
        }
        for bad in [
            "redis://h:6379/-1",
            "redis://h:6379/+1",
            "redis://h:6379/abc",
            "redis://h:6379/1.5",
            "redis://h:6379/0/5",
            "redis://h:6379/99999999999999999999",
            "redis://h:6379?db=3",
            "redis://h:6379/?db=3",
            "redis://h:6379/1\n",
            "redis://h:6379/1\n5",
            " redis://h:6379",
            "redis://h:6379 ",
            "redis://h :6379",
            "redis://h:0",
            "redis://h:abc",
            "redis://h:70000",
            "redis://",
            "redis:///0",
            "redis://:6379",
            "redis:h:6379",
            "redis://a,b:6379",
            "redis://user@h",
            "redis://0.0.0.0:6379",
            "rediss://h/#insecure",
            "http://h:6379",
            "h:6379",
            "localhost",
            "unix://",
            "unix:///",
            "unix://host/run/redis.sock",
            "unix:run/redis.sock",
            "unix:///run/redis.sock?db=-1",
            "unix:///run/redis.sock?db=1&db=2",
            "unix:///run/redis.sock?database=1",
            "unix:///run/redis.sock?user=me",
        ] {
            assert!(RedisUrl::parse(bad).is_err(), "{bad}");
        }
        assert!(RedisUrl::parse(&format!("unix:///{}", "x".repeat(107))).is_err(), "too long for a socket");
    }

    #[test]
    fn passwords_arrive_whole_whatever_is_in_them() {
        let password = "p@ss/w:o?r#d%&+ ü";
        let coded = "p%40ss%2Fw%3Ao%3Fr%23d%25%26+%20%C3%BC";
        for text in [format!("redis://me:{coded}@h:1/2"), format!("unix:///s?db=2&user=me&pass={coded}")] {
            let url = RedisUrl::parse(&text).unwrap();
            let info = url.expose().into_connection_info().unwrap();
            assert_eq!(info.redis_settings().password(), Some(password), "{text}");
            assert_eq!(info.redis_settings().username(), Some("me"));
        }
    }

    #[test]
    fn c190_a_password_is_never_shown() {
        for text in ["redis://:s3cret@h:1/2", "redis://me:s3cret@h", "unix:///s?pass=s3cret&db=1", "rediss://:s3cret@h"]
        {
            let url = RedisUrl::parse(text).unwrap();
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("s3cret") && shown.contains("***"), "{shown}");
        }
        for bad in
            ["redis://:s3cret@h/x", "redis://:s3/cret@h", "s3cret", "redis://s3cret@h", "unix://s3cret", "x://s3cret"]
        {
            let told = RedisUrl::parse(bad).unwrap_err();
            assert!(!told.contains("cret@") && !told.contains("s3cret"), "{told}");
        }
        assert_eq!(mask_userinfo("a 'redis://:p@q@h/1' b http://u:p@h"), "a 'redis://***@h/1' b http://***@h");
        assert_eq!(mask_userinfo("see https://docs/ a@b"), "see https://docs/ a@b");
    }
}
