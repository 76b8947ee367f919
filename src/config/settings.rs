//! The table of settings: flags, environment names, help and documentation all come from it.

use super::Mode;

/// What a value looks like; decides the placeholder in `--help` and the quotes in `config show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Free text.
    Text,
    /// A whole number, digits only.
    Number,
    /// `true` or `false`; the bare flag means `true`.
    Switch,
    /// As the API writes durations: `30s`, `1h30m`, `7d`.
    Duration,
    /// Bytes, or with `KiB`, `MiB`, `GiB`.
    Size,
    /// Separated by commas; in TOML also a list.
    List,
    /// A path; a relative one starts at the working directory.
    Path,
}

impl Kind {
    /// The placeholder in `--help`.
    #[must_use]
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Number => "N",
            Self::Switch => "BOOL",
            Self::Duration => "DURATION",
            Self::Size => "SIZE",
            Self::List => "LIST",
            Self::Path => "PATH",
        }
    }
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name in TOML; flag and variable follow from it.
    pub name: &'static str,
    /// The form of its value.
    pub kind: Kind,
    /// Whether there is a flag. Secrets of their own have none: arguments can be seen in the list of processes.
    pub flag: bool,
    /// Whether the value must never be printed.
    pub secret: bool,
    /// The default as it would be written, for `dev` and for `serve`; empty if there is none.
    pub default: (&'static str, &'static str),
    /// One sentence for `--help`.
    pub help: &'static str,
}

impl Setting {
    /// The name of the flag, without its dashes.
    #[must_use]
    pub fn flag_name(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        match self.name {
            // OpenSSL's variable, which every tool reads
            "ssl_cert_file" => "SSL_CERT_FILE".to_owned(),
            name => format!("{PREFIX}{}", name.to_ascii_uppercase()),
        }
    }

    /// The default for a mode, if there is one.
    #[must_use]
    pub fn default_for(&self, mode: Mode) -> Option<&'static str> {
        let text = match mode {
            Mode::Dev => self.default.0,
            Mode::Serve => self.default.1,
        };
        (!text.is_empty()).then_some(text)
    }
}

/// What our environment variables begin with.
pub const PREFIX: &str = "DUEPOST_";

/// Variables with our prefix that are no settings of the service: the path of the TOML file, what the Makefile's
/// scripts read, and whom the commands that call a service ask.
pub const OTHER_VARIABLES: [&str; 5] =
    ["DUEPOST_CONFIG", "DUEPOST_NO_INSTALL", "DUEPOST_URL", "DUEPOST_KEY", "DUEPOST_KEY_FILE"];

const fn setting(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { name, kind, flag: true, secret: false, default: (default, default), help }
}

/// All settings, in the order in which `--help` and `config show` list them.
pub const SETTINGS: &[Setting] = &[
    setting(
        "listen",
        Kind::Text,
        "127.0.0.1:8710",
        "Address and port of the API; beyond loopback it needs keys. Port 0: any free one",
    ),
    Setting {
        secret: true,
        ..setting(
            "redis",
            Kind::Text,
            "",
            "Redis to use: redis://[user:password@]host[:port][/database], rediss://…, unix:///path?db=0. Without it a private redis-server runs in the data directory",
        )
    },
    Setting {
        secret: true,
        ..setting(
            "redis_cluster",
            Kind::List,
            "",
            "Redis Cluster to use: some of its nodes, host:port,host:port or redis[s]://[user:password@]host:port,host:port",
        )
    },
    Setting {
        secret: true,
        ..setting(
            "redis_sentinel",
            Kind::List,
            "",
            "Sentinels of the Redis to use: host:port,host:port or redis[s]://[user:password@]host:port,host:port[/database]; user, password and database are those of the Redis, TLS is for both",
        )
    },
    setting("redis_sentinel_master", Kind::Text, "", "What the Sentinels call the Redis to use, as mymaster"),
    Setting { flag: false, ..setting("redis_sentinel_user", Kind::Text, "", "User for the Sentinels themselves") },
    Setting {
        flag: false,
        secret: true,
        ..setting("redis_sentinel_password", Kind::Text, "", "Password for the Sentinels themselves")
    },
    setting("data_dir", Kind::Path, "./.duepost", "Directory of the private Redis"),
    setting("prefix", Kind::Text, "dp", "What all our keys in Redis begin with: 1 to 32 of A-Z a-z 0-9 _ . -"),
    setting(
        "durability",
        Kind::Text,
        "auto",
        "What an answered change must survive. memory: a crash of any process (up to 1 s is lost when the power fails); disk: power loss too; replica: loss of the primary too; auto: what the Redis gives, the private one disk for serve, memory for dev",
    ),
    setting("replicas", Kind::Number, "1", "With durability replica: replicas that must have a change, 1 to 10"),
    setting(
        "replica_timeout",
        Kind::Duration,
        "1s",
        "With durability replica: how long they are waited for before the answer is 503 outcome-unknown, 100ms to 4s",
    ),
    setting(
        "keys_file",
        Kind::Path,
        "",
        "TOML file with hashes of API keys: [[key]] with name, sha256, roles, queues (made by `duepost key new`)",
    ),
    Setting {
        flag: false,
        secret: true,
        ..setting(
            "keys",
            Kind::Text,
            "",
            "Hashes of API keys as a JSON list: [{\"name\", \"sha256\", \"roles\", \"queues\"}]",
        )
    },
    Setting {
        flag: false,
        secret: true,
        ..setting(
            "secret_key",
            Kind::Text,
            "",
            "Seals webhooks' secrets and header values in Redis: 32 random bytes in base64, the same for all replicas",
        )
    },
    setting("secret_key_file", Kind::Path, "", "File with the secret_key, instead of the variable"),
    setting(
        "no_auth",
        Kind::Switch,
        "false",
        "Listen beyond loopback without API keys: anyone who reaches the port may do anything",
    ),
    Setting {
        default: ("true", "false"),
        ..setting(
            "allow_private_targets",
            Kind::Switch,
            "",
            "Deliver to loopback, private and other non-public addresses too",
        )
    },
    setting(
        "allowed_targets",
        Kind::List,
        "",
        "Networks in which targets are allowed although they are not public, as 10.1.0.0/16,fd00::/8",
    ),
    setting("max_payload", Kind::Size, "256KiB", "Largest payload of a task, 1KiB to 32MiB"),
    setting("max_batch", Kind::Size, "4MiB", "Largest body of a batch, up to 64MiB; at least max_payload + 64KiB"),
    setting(
        "max_delay",
        Kind::Duration,
        "3653d",
        "Furthest time of a task from now, 1m to 36525d; 3653d are ten years with their leap days",
    ),
    setting(
        "no_auto_create",
        Kind::Switch,
        "false",
        "Queues come to life by PUT only, not with their first task or webhook",
    ),
    setting(
        "max_requests",
        Kind::Number,
        "1024",
        "Calls of the API under way at once, 1 to 100000; past it they are answered 503 `overloaded`",
    ),
    setting(
        "max_claims",
        Kind::Number,
        "4096",
        "Claims under way at once, most of them waiting for a task, 1 to 100000; they are no part of max_requests",
    ),
    setting(
        "slots_per_webhook",
        Kind::Number,
        "64",
        "Calls under way at once to one webhook from this process, 1 to 10000; the default is never more than slots",
    ),
    setting("slots", Kind::Number, "1024", "Calls under way at once from this process, 1 to 100000"),
    setting(
        "threads",
        Kind::Number,
        "",
        "Threads that do the work, 1 to 1024; else one for each core, and one less beside a private Redis, which needs a core too",
    ),
    setting(
        "lease",
        Kind::Duration,
        "10s",
        "How long a worker holds a task between two renewals, 3s to 60s; a task of a dead worker is taken up again after it",
    ),
    setting("drain", Kind::Duration, "25s", "How long attempts under way may go on after SIGTERM, 0s to 10m"),
    setting(
        "log",
        Kind::Text,
        "info",
        "What is logged: error, warn, info, debug, trace, or per module as info,duepost::store=debug",
    ),
    setting("log_format", Kind::Text, "text", "Form of the log on standard error: text or json"),
    setting(
        "request_log",
        Kind::Switch,
        "false",
        "A line of the log for every request, at level info as duepost::requests: ids, status, time; no query, header or body",
    ),
    setting(
        "redis_server_bin",
        Kind::Path,
        "",
        "The redis-server or valkey-server to run as the private Redis; else it is looked for",
    ),
    setting(
        "metrics_queue_labels",
        Kind::Number,
        "1000",
        "How many queues get labels of their own in /metrics, 1 to 100000; the rest is counted under _other",
    ),
    Setting {
        flag: false,
        ..setting("ssl_cert_file", Kind::Path, "", "PEM file with further roots for TLS, to receivers and to Redis")
    },
];

/// The setting of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}

/// The setting that a mistyped name was probably meant to be.
#[must_use]
pub fn closest(name: &str) -> Option<&'static Setting> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SETTINGS
        .iter()
        .map(|s| (strsim::jaro_winkler(&name, s.name), s))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, s)| s)
}
