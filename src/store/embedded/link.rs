//! What we ask the server itself. Each call has its own short connection and a time limit.

use std::{path::Path, time::Duration};

use deadpool_redis::redis::{self, Client, Connection, RedisError, RedisResult};

use super::server::Version;

/// For a connection and for each answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: Option<u32>,
    pub run_id: String,
    /// `redis-server 7.0.15`
    pub server: String,
    pub version: Option<Version>,
}

#[derive(Debug)]
pub enum Probe {
    Ready(Identity),
    /// Reads its append-only file and answers nothing else yet.
    Loading {
        percent: String,
        seconds_left: String,
    },
    Silent(RedisError),
}

#[derive(Debug)]
pub struct Link(Client);

impl Link {
    pub fn new(url: &str) -> RedisResult<Self> {
        Client::open(url).map(Self)
    }

    /// `redis+unix:///…` with whatever the path has in it escaped.
    pub fn url_of(socket: &Path) -> Option<String> {
        let file = url::Url::from_file_path(socket).ok()?;
        Some(file.as_str().replacen("file://", "redis+unix://", 1))
    }

    pub fn probe(&self) -> Probe {
        let answer = self.connect().and_then(|mut connection| {
            if redis::cmd("PING").query::<String>(&mut connection).is_ok() {
                return identity(&mut connection).map(Probe::Ready);
            }
            let persistence: String = redis::cmd("INFO").arg("persistence").query(&mut connection)?;
            let value = |name| field(&persistence, name).unwrap_or("?").to_owned();
            Ok(Probe::Loading { percent: value("loading_loaded_perc"), seconds_left: value("loading_eta_seconds") })
        });
        answer.unwrap_or_else(Probe::Silent)
    }

    /// Who listens there, also while it loads.
    pub fn identity(&self) -> RedisResult<Identity> {
        identity(&mut self.connect()?)
    }

    /// Asks the server to write everything and leave. It answers by leaving.
    pub fn shutdown(&self, within: Duration) -> RedisResult<()> {
        let mut connection = self.connect()?;
        connection.set_read_timeout(Some(within))?;
        match redis::cmd("SHUTDOWN").query::<()>(&mut connection) {
            Err(error) if error.is_connection_dropped() => Ok(()),
            answer => answer,
        }
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.0.get_connection_with_timeout(ANSWER_WITHIN)?;
        connection.set_read_timeout(Some(ANSWER_WITHIN))?;
        connection.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(connection)
    }
}

fn identity(connection: &mut Connection) -> RedisResult<Identity> {
    let info: String = redis::cmd("INFO").arg("server").query(connection)?;
    // Valkey tells both: its own version, and the Redis it is like
    let (name, version) = match field(&info, "valkey_version") {
        Some(version) => ("valkey-server", version),
        None => ("redis-server", field(&info, "redis_version").unwrap_or("?")),
    };
    Ok(Identity {
        pid: field(&info, "process_id").and_then(|pid| pid.parse().ok()),
        run_id: field(&info, "run_id").unwrap_or_default().to_owned(),
        server: format!("{name} {version}"),
        version: Version::parse(version),
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_survives_the_way_through_the_url() {
        for path in ["/run/a/redis.sock", "/with space/100%/q?#é/redis.sock"] {
            let url = Link::url_of(Path::new(path)).unwrap();
            let client = Client::open(url.as_str()).unwrap();
            match client.get_connection_info().addr() {
                redis::ConnectionAddr::Unix(back) => assert_eq!(back, Path::new(path)),
                other => panic!("not a unix socket: {other}"),
            }
        }
    }

    #[test]
    fn a_field_of_info_is_a_whole_name() {
        let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\n";
        assert_eq!(field(info, "valkey_version"), Some("8.1.1"));
        assert_eq!(field(info, "version"), None);
        assert_eq!(field(info, "redis"), None);
    }
}
