//! Trouble with Redis, and what it means for the call that met it. Refusals are not errors: they are answers.

use std::sync::Arc;

use deadpool_redis::{
    PoolError,
    redis::{ErrorKind, RedisError, ServerErrorKind, Value},
};

/// Trouble below: named after the step that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No connection could be had.
    #[error("no connection to Redis")]
    Connect(#[source] Arc<PoolError>),
    /// Redis refused a call, or the connection broke under it.
    #[error("Redis call `{call}` failed")]
    Call {
        /// The script or command.
        call: &'static str,
        /// What the client library says.
        #[source]
        cause: RedisError,
        /// Whether the call, or one sent before it for the same purpose, may have taken effect.
        unknown: bool,
    },
    /// The settings name a level of durability, and Redis does not give it now.
    #[error("{0}")]
    Durability(String),
    /// It was done, but too few replicas (or disks) had it in time.
    #[error("Redis call `{call}` was done, and may be lost: too few replicas have it")]
    NotCovered {
        /// The script.
        call: &'static str,
    },
    /// Redis has no memory left for something new.
    #[error("Redis has no memory left")]
    Full,
    /// Nobody is known who could be asked.
    #[error("no primary of Redis is known: {why}")]
    NoPrimary {
        /// As far as one can tell.
        why: &'static str,
    },
    /// A script answered what it never should.
    #[error("Redis call `{call}` gave an answer that cannot be read: {what}")]
    Answer {
        /// The script or command.
        call: &'static str,
        /// What was expected.
        what: &'static str,
    },
    /// A stored record has a form that this version does not know.
    #[error("a stored record cannot be read: {0}")]
    Record(#[from] super::record::RecordError),
    /// The service is stopping and takes no more work.
    #[error("the service is stopping")]
    Stopping,
}

/// What became of a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing was done; trying again soon may work.
    NotDone,
    /// Nothing was done: Redis has no memory left.
    Full,
    /// It may have been done.
    Unknown,
    /// Nothing was done, and nothing will be until somebody changes the set-up (credentials, permissions).
    NotReady,
    /// A fault of ours.
    Bug,
}

impl StoreError {
    /// What became of the call.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Connect(cause) => match cause.as_ref() {
                PoolError::Backend(e) if matches!(fate_of(e), Fate::NotReady) => Fate::NotReady,
                _ => Fate::NotDone,
            },
            Self::Call { cause, unknown, .. } => match fate_of(cause) {
                Fate::NotDone | Fate::NotReady | Fate::Full if *unknown => Fate::Unknown,
                fate => fate,
            },
            Self::Answer { .. } | Self::Record(_) => Fate::Bug,
            Self::Full => Fate::Full,
            Self::Durability(_) => Fate::NotReady,
            Self::NotCovered { .. } => Fate::Unknown,
            Self::Stopping | Self::NoPrimary { .. } => Fate::NotDone,
        }
    }

    /// Whether the same call may be sent again, because every script is safe to run twice.
    #[must_use]
    pub fn may_repeat(&self) -> bool {
        matches!(self.fate(), Fate::NotDone | Fate::Unknown)
    }
}

/// Whether the node was a primary and is one no more. Redis 6.2 has the code of what failed in a script in the text only.
pub fn is_demoted(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly) => true,
        ErrorKind::Server(ServerErrorKind::ResponseError) => error.detail().is_some_and(|d| d.contains("READONLY")),
        _ => false,
    }
}

/// Whether the error says that another node may be the right one, now or soon.
pub fn is_about_topology(kind: ServerErrorKind) -> bool {
    use ServerErrorKind as S;
    matches!(kind, S::Moved | S::Ask | S::TryAgain | S::ClusterDown | S::MasterDown | S::ReadOnly | S::BusyLoading)
}

/// Whether one answer of several says that the node is a primary no more.
pub fn tells_demotion(item: &Value) -> bool {
    matches!(item, Value::ServerError(error) if is_demoted(&error.clone().into()))
}

/// Whether one answer of several is such an error.
pub fn is_elsewhere(item: &Value) -> bool {
    matches!(item, Value::ServerError(error) if error.kind().is_some_and(is_about_topology))
}

/// The one table of Redis's errors. Codes as Redis 6.2 to 8 and Valkey send them.
fn fate_of(error: &RedisError) -> Fate {
    use ServerErrorKind as S;
    match error.kind() {
        ErrorKind::Server(kind) => match kind {
            S::NoScript
            | S::BusyLoading
            | S::ReadOnly
            | S::MasterDown
            | S::ClusterDown
            | S::Moved
            | S::Ask
            | S::TryAgain => Fate::NotDone,
            S::NoPerm => Fate::NotReady,
            _ if error.to_string().contains("refused to switch database") => Fate::NotReady,
            S::ResponseError if error.detail().is_some_and(|d| d.contains("max number of clients")) => Fate::NotDone,
            _ => by_text(error),
        },
        ErrorKind::AuthenticationFailed => Fate::NotReady,
        ErrorKind::Io if error.is_connection_refusal() => Fate::NotDone,
        ErrorKind::Io if is_bad_certificate(error) => Fate::NotReady,
        ErrorKind::Extension => by_text(error),
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => Fate::Unknown,
        _ => Fate::Bug,
    }
}

/// How Redis says that it does not know us, or does not let us: by code, or for long commands and in scripts in words.
const REFUSALS: [&str; 6] =
    ["NOAUTH", "WRONGPASS", "NOPERM", "unauthenticated", "The user executing the script", "ACL failure in script"];
/// Whether TLS refused whom it met. The client library keeps the cause where only its text can be seen.
fn is_bad_certificate(error: &RedisError) -> bool {
    error.to_string().contains("invalid peer certificate")
}

fn by_text(error: &RedisError) -> Fate {
    // A script's error carries the code of the command that failed inside it, sometimes only in the text.
    let text = error.to_string();
    let says = |code: &str| error.code() == Some(code) || text.contains(code);
    if says("OOM") {
        Fate::Full
    } else if ["NOREPLICAS", "MISCONF", "BUSY", "READONLY", "MASTERDOWN"].into_iter().any(says) {
        Fate::NotDone
    } else if REFUSALS.into_iter().any(says) {
        Fate::NotReady
    } else if says("UNBLOCKED") {
        Fate::Unknown
    } else {
        Fate::Bug
    }
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::{self, RedisError};

    use super::*;

    /// What an error line of Redis, as it comes over the wire, means for the call.
    fn of(line: &str) -> Fate {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("it can be read");
        let cause = value.extract_error().expect_err("an error");
        StoreError::Call { call: "enqueue", cause, unknown: false }.fate()
    }

    /// The lines are those of Redis 7.0, and one of Valkey 9.1; `tests/it/redis_errors.rs` provokes what one Redis can be
    /// made to say.
    #[test]
    fn the_error_table_by_line() {
        for (fate, line) in [
            (Fate::NotDone, "NOSCRIPT No matching script. Please use EVAL."),
            (Fate::NotDone, "LOADING Redis is loading the dataset in memory"),
            (Fate::NotDone, "READONLY You can't write against a read only replica."),
            (Fate::NotDone, "READONLY You can't write against a read only replica. script: 6d, on @user_script:62."),
            (Fate::NotDone, "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
            (Fate::NotDone, "CLUSTERDOWN The cluster is down"),
            (Fate::NotDone, "CLUSTERDOWN Hash slot not served"),
            (Fate::NotDone, "MOVED 3999 127.0.0.1:6381"),
            (Fate::NotDone, "ASK 3999 127.0.0.1:6381"),
            (Fate::NotDone, "TRYAGAIN Multiple keys request during rehashing of slot"),
            (Fate::NotDone, "NOREPLICAS Not enough good replicas to write."),
            (Fate::NotDone, "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist."),
            (Fate::NotDone, "MISCONF Errors writing to the AOF file: No space left on device"),
            (Fate::NotDone, "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
            (Fate::NotDone, "ERR max number of clients reached"),
            (Fate::Full, "OOM command not allowed when used memory > 'maxmemory'."),
            (Fate::Full, "OOM command not allowed when used memory > 'maxmemory'. script: 6d, on @user_script:62."),
            (Fate::Full, "ERR Error running script (call to f_6d): @user_script:62: -OOM command not allowed"),
            (Fate::NotReady, "NOAUTH Authentication required."),
            (Fate::NotReady, "ERR Protocol error: unauthenticated multibulk length"),
            (Fate::NotReady, "NOPERM this user has no permissions to run the 'evalsha' command"),
            (Fate::NotReady, "ERR The user executing the script can't run this command or subcommand script: 6d"),
            (Fate::NotReady, "ERR ACL failure in script: User app has no permissions to run the 'hset' command"),
            (Fate::NotReady, "WRONGPASS invalid username-password pair or user is disabled."),
            (Fate::Unknown, "UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            (Fate::Bug, "CROSSSLOT Keys in request don't hash to the same slot"),
            (Fate::Bug, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            (Fate::Bug, "ERR user_script:1: Script attempted to access nonexistent global variable 'x'"),
        ] {
            assert_eq!(of(line), fate, "{line}");
        }
    }

    #[test]
    fn what_may_have_left_is_unknown() {
        let io: RedisError = std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        assert_eq!(StoreError::Call { call: "x", cause: io.clone(), unknown: false }.fate(), Fate::NotDone);
        assert_eq!(StoreError::Call { call: "x", cause: io, unknown: true }.fate(), Fate::Unknown);
        let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let io: RedisError = std::io::Error::new(std::io::ErrorKind::InvalidData, bad).into();
        assert_eq!(StoreError::Call { call: "x", cause: io, unknown: false }.fate(), Fate::NotReady);
        let io: RedisError = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
        assert_eq!(StoreError::Call { call: "x", cause: io, unknown: false }.fate(), Fate::Unknown);
    }
}
