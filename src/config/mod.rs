//! One [`Config`], read once at start: flags over `DUEPOST_*` over a TOML file over defaults.
//!
//! Whatever is wrong refuses to start and says which setting it is and where it came from; nothing is clamped or replaced
//! in silence. Secrets appear in no `Debug`, no `Display` and no error. The environment comes in as an argument, so tests
//! need no global state. Neighbours: `cli` has the commands, [`settings`] the table that help and documentation share.

pub mod cli;
mod error;
mod layers;
mod otel;
mod parse;
mod reader;
mod redis_nodes;
mod redis_url;
pub mod settings;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

use ipnet::IpNet;

use crate::{domain::durability::Durability, keys::Keys};
pub use cli::CliArgs;
pub use error::ConfigError;
use layers::Layers;
pub use layers::Origin;
use parse::Wrong;
use reader::{Reader, Row};
use redis_nodes::PORTS;
pub use redis_nodes::{RedisNodes, SentinelSettings};
pub use redis_url::{RedisUrl, mask_userinfo};
use settings::SETTINGS;

/// What the service is started for; some defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `duepost dev`: at a developer's desk, loopback receivers allowed.
    Dev,
    /// `duepost serve`: production.
    Serve,
}

/// The key that seals secrets at rest. Its `Debug` shows nothing of it.
#[derive(Clone)]
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// The key itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// All settings, right by themselves and with each other. Paths are absolute if the working directory was.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the API. Default 127.0.0.1:8710. `DUEPOST_LISTEN`.
    pub listen: SocketAddr,
    /// Redis to use; `None` means a private one. Default none. `DUEPOST_REDIS`.
    pub redis: Option<RedisUrl>,
    /// Nodes of a Redis Cluster to use. Default none. `DUEPOST_REDIS_CLUSTER`.
    pub redis_cluster: Option<RedisNodes>,
    /// Sentinels that know the Redis to use. Default none. `DUEPOST_REDIS_SENTINEL`, `DUEPOST_REDIS_SENTINEL_MASTER`,
    /// `DUEPOST_REDIS_SENTINEL_USER`, `DUEPOST_REDIS_SENTINEL_PASSWORD`.
    pub redis_sentinel: Option<SentinelSettings>,
    /// Directory of the private Redis. Default `./.duepost`. `DUEPOST_DATA_DIR`.
    pub data_dir: PathBuf,
    /// What keys in Redis begin with. Default `dp`. `DUEPOST_PREFIX`.
    pub prefix: String,
    /// What an answered change must survive; `None` means `auto`: what the Redis gives, and for the private one see
    /// [`Config::private_durability`]. Default `auto`. `DUEPOST_DURABILITY`.
    pub durability: Option<Durability>,
    /// With [`Durability::Replica`]: replicas that must have a change. Default 1. `DUEPOST_REPLICAS`.
    pub replicas: usize,
    /// With [`Durability::Replica`]: how long they are waited for. Default 1 s. `DUEPOST_REPLICA_TIMEOUT`.
    pub replica_timeout: Duration,
    /// API keys of `keys_file` and `keys` together; `None` means that none are asked for. Default none.
    /// `DUEPOST_KEYS_FILE`, `DUEPOST_KEYS`.
    pub keys: Option<Keys>,
    /// Seals secrets at rest; of `secret_key` or `secret_key_file`. Default none. `DUEPOST_SECRET_KEY`,
    /// `DUEPOST_SECRET_KEY_FILE`.
    pub secret_key: Option<SecretKey>,
    /// Beyond loopback without keys. Default false. `DUEPOST_NO_AUTH`.
    pub no_auth: bool,
    /// Targets need not be public. Default false, for `dev` true. `DUEPOST_ALLOW_PRIVATE_TARGETS`.
    pub allow_private_targets: bool,
    /// Networks whose addresses are allowed as targets. Default none. `DUEPOST_ALLOWED_TARGETS`.
    pub allowed_targets: Vec<IpNet>,
    /// Bytes of a payload. Default 256 KiB. `DUEPOST_MAX_PAYLOAD`.
    pub max_payload: usize,
    /// Bytes of a batch's body; at least `max_payload` + [`BODY_SURPLUS`]. Default 4 MiB. `DUEPOST_MAX_BATCH`.
    pub max_batch: usize,
    /// Furthest time of a task from now. Default 3653 d. `DUEPOST_MAX_DELAY`.
    pub max_delay: Duration,
    /// Queues come to life by PUT only. Default false. `DUEPOST_NO_AUTO_CREATE`.
    pub no_auto_create: bool,
    /// Calls of the API under way at once. Default 1024. `DUEPOST_MAX_REQUESTS`.
    pub max_requests: usize,
    /// Claims under way at once. Default 4096. `DUEPOST_MAX_CLAIMS`.
    pub max_claims: usize,
    /// Calls at once to one webhook; never more than `slots`. Default 64. `DUEPOST_SLOTS_PER_WEBHOOK`.
    pub slots_per_webhook: usize,
    /// Calls at once in all. Default 1024. `DUEPOST_SLOTS`.
    pub slots: usize,
    /// Threads that do the work. Default one for each core, one less beside a private Redis, at least 1. `DUEPOST_THREADS`.
    pub threads: usize,
    /// A worker's hold on a task between renewals. Default 10 s. `DUEPOST_LEASE`.
    pub lease: Duration,
    /// Grace for attempts under way after SIGTERM. Default 25 s. `DUEPOST_DRAIN`.
    pub drain: Duration,
    /// Directives of the log filter. Default `info`. `DUEPOST_LOG`.
    pub log: String,
    /// Form of the log. Default text. `DUEPOST_LOG_FORMAT`.
    pub log_format: LogFormat,
    /// A line of the log for every request. Default false. `DUEPOST_REQUEST_LOG`.
    pub request_log: bool,
    /// The private Redis's program; `None` means that it is looked for. Default none. `DUEPOST_REDIS_SERVER_BIN`.
    pub redis_server_bin: Option<PathBuf>,
    /// Queues with labels of their own in `/metrics`. Default 1000. `DUEPOST_METRICS_QUEUE_LABELS`.
    pub metrics_queue_labels: usize,
    /// PEM file with further roots for TLS. Default none. `SSL_CERT_FILE`.
    pub ssl_cert_file: Option<PathBuf>,
    /// How long a call of the collector of traces may take; `None` sends none. Default none. The standard variables `OTEL_…`.
    pub traces: Option<Duration>,
}

/// Redis works in one thread, which needs a core as much as ours do: on two cores two threads of ours beside it are slower
/// than one.
fn threads_for(beside_redis: bool, cores: usize) -> usize {
    cores.saturating_sub(usize::from(beside_redis)).max(1)
}

/// Bytes that the body of a task may have beyond its payload.
pub const BODY_SURPLUS: usize = 64 << 10;

/// A configuration with what is worth telling about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// What should be logged loudly at start: settings that open something.
    pub warnings: Vec<String>,
    rows: Vec<Row>,
}

impl Loaded {
    /// Each setting as a line of TOML with its origin; secrets masked, absent ones as comments.
    #[must_use]
    pub fn show(&self) -> String {
        let lines: Vec<(String, &Origin)> = self.rows.iter().map(|row| (row.line(), &row.origin)).collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|w| *w < 60).max().unwrap_or(0);
        lines.iter().map(|(line, origin)| format!("{line:width$}  # {origin}\n")).collect()
    }
}

impl Config {
    /// Reads all sources. `cwd` is where `duepost.toml` is looked for and relative paths start.
    ///
    /// # Errors
    /// The first thing that is wrong; see [`ConfigError`].
    pub fn load(
        mode: Mode,
        cli: &CliArgs,
        env: impl IntoIterator<Item = (String, String)>,
        cwd: &Path,
    ) -> Result<Loaded, ConfigError> {
        let env: Vec<_> = env.into_iter().collect();
        let traces = otel::traces(&env);
        let mut read = Reader { mode, cwd, layers: Layers::read(cli, env, cwd)?, rows: Vec::new() };
        let keys = read.keys()?;
        let secret_key = read.secret_key()?;
        let redis_sentinel = read.sentinel()?;
        let mut config = Self {
            listen: read.value("listen", parse::socket)?,
            redis: read.optional("redis", RedisUrl::parse)?,
            redis_cluster: read.optional("redis_cluster", |text| RedisNodes::parse(text, PORTS.0))?,
            redis_sentinel,
            data_dir: read.value("data_dir", |text| Ok(absolute(cwd, text)))?,
            prefix: read.value("prefix", parse::prefix)?,
            durability: read.value("durability", durability)?,
            replicas: read.count("replicas", 10)?,
            replica_timeout: read.value("replica_timeout", |text| parse::duration(text, TENTH..=seconds(4)))?,
            keys,
            secret_key,
            no_auth: read.value("no_auth", parse::switch)?,
            allow_private_targets: read.value("allow_private_targets", parse::switch)?,
            allowed_targets: read.optional("allowed_targets", parse::networks)?.unwrap_or_default(),
            max_payload: read.value("max_payload", |text| parse::size(text, 1 << 10..=32 << 20))?,
            max_batch: read.value("max_batch", |text| parse::size(text, 1 << 10..=64 << 20))?,
            max_delay: read.value("max_delay", |text| parse::duration(text, seconds(60)..=seconds(36_525 * 86_400)))?,
            no_auto_create: read.value("no_auto_create", parse::switch)?,
            max_requests: read.count("max_requests", 100_000)?,
            max_claims: read.count("max_claims", 100_000)?,
            slots_per_webhook: read.count("slots_per_webhook", 10_000)?,
            slots: read.count("slots", 100_000)?,
            threads: read.optional("threads", |text| parse::number(text, 1..=1024))?.map_or(0, |n| n as usize),
            lease: read.value("lease", |text| parse::duration(text, seconds(3)..=seconds(60)))?,
            drain: read.value("drain", |text| parse::duration(text, seconds(0)..=seconds(600)))?,
            log: read.value("log", parse::log_filter)?,
            log_format: read.value("log_format", log_format)?,
            request_log: read.value("request_log", parse::switch)?,
            redis_server_bin: read.optional("redis_server_bin", |text| file(cwd, text))?,
            metrics_queue_labels: read.count("metrics_queue_labels", 100_000)?,
            ssl_cert_file: read.optional("ssl_cert_file", |text| file(cwd, text))?,
            traces: traces.clone().unwrap_or_default(),
        };
        if read.layers.get("slots_per_webhook").is_none() && config.slots_per_webhook > config.slots {
            config.slots_per_webhook = config.slots;
            read.amend("slots_per_webhook", config.slots.to_string());
        }
        if config.threads == 0 {
            config.threads = threads_for(config.has_private_redis(), available_parallelism().map_or(1, usize::from));
            read.amend("threads", config.threads.to_string());
        }
        config.check(&read)?;
        let mut warnings = config.warnings(mode);
        warnings.extend(traces.err());
        let place = |row: &Row| SETTINGS.iter().position(|s| s.name == row.setting.name);
        read.rows.sort_by_key(place);
        Ok(Loaded { config, warnings, rows: read.rows })
    }

    /// Only the address of the API, for `duepost healthcheck`: it must work whatever else the service was started with.
    ///
    /// # Errors
    /// As [`Config::load`], for what it reads.
    pub fn listen_address(
        cli: &CliArgs,
        env: impl IntoIterator<Item = (String, String)>,
        cwd: &Path,
    ) -> Result<SocketAddr, ConfigError> {
        let layers = Layers::read(cli, env, cwd)?;
        Reader { mode: Mode::Serve, cwd, layers, rows: Vec::new() }.value("listen", parse::socket)
    }

    /// Whether the Redis is a child of this process.
    #[must_use]
    pub const fn has_private_redis(&self) -> bool {
        self.redis.is_none() && self.redis_cluster.is_none() && self.redis_sentinel.is_none()
    }

    /// What the private Redis is to give.
    #[must_use]
    pub const fn private_durability(&self, mode: Mode) -> Durability {
        match (self.durability, mode) {
            (Some(Durability::Memory), _) | (None, Mode::Dev) => Durability::Memory,
            _ => Durability::Disk,
        }
    }

    /// Refuses what is right by itself but not together.
    fn check(&self, read: &Reader<'_>) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError::Contradiction(text));
        let (listen, from) = (self.listen, |name| read.origin(name));
        let several = ["redis", "redis_cluster", "redis_sentinel"];
        let given: Vec<_> = several.into_iter().filter(|name| from(name) != Origin::Default).collect();
        if let [one, other, ..] = given[..] {
            return refuse(format!("{one} ({}) and {other} ({}) exclude each other", from(one), from(other)));
        }
        if let Some(cluster) = self.redis_cluster.as_ref().filter(|cluster| cluster.database() != 0) {
            return refuse(format!(
                "redis_cluster ({}) has database {}, and a Redis Cluster has none but 0",
                from("redis_cluster"),
                cluster.database()
            ));
        }
        if self.no_auth && self.keys.is_some() {
            let keys = if from("keys") == Origin::Default { from("keys_file") } else { from("keys") };
            return refuse(format!("no_auth ({}) and API keys ({keys}) exclude each other", from("no_auth")));
        }
        if !is_loopback(listen) && self.keys.is_none() && !self.no_auth {
            return refuse(format!(
                "refusing to listen on {listen} ({}) without API keys: make one with `duepost key new` and give its \
                 entry in keys_file or DUEPOST_KEYS, or say no_auth if anyone who reaches the port may do anything",
                from("listen")
            ));
        }
        if !self.has_redis() && self.durability == Some(Durability::Replica) {
            return refuse(format!(
                "durability ({}) is replica, and the private Redis has none: give one that has",
                from("durability")
            ));
        }
        let least = self.max_payload + BODY_SURPLUS;
        if self.max_batch < least {
            return refuse(format!(
                "max_batch ({}) is {} bytes; with max_payload ({}) it must be at least {least}, or a batch could not \
                 hold one task",
                from("max_batch"),
                self.max_batch,
                from("max_payload")
            ));
        }
        if self.slots_per_webhook > self.slots {
            return refuse(format!(
                "slots_per_webhook ({}) is {}, more than slots ({}), which is {}",
                from("slots_per_webhook"),
                self.slots_per_webhook,
                from("slots"),
                self.slots
            ));
        }
        Ok(())
    }

    /// Whether somebody else's Redis is used, not a private one.
    #[must_use]
    pub fn has_redis(&self) -> bool {
        self.redis.is_some() || self.redis_cluster.is_some() || self.redis_sentinel.is_some()
    }

    fn warnings(&self, mode: Mode) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.no_auth && !is_loopback(self.listen) {
            warnings.push(format!(
                "NO AUTHENTICATION: whoever reaches {} may read, change and delete every task",
                self.listen
            ));
        }
        if self.allow_private_targets && mode == Mode::Serve {
            warnings.push("webhooks may point to loopback and private addresses".to_owned());
        }
        if !self.allowed_targets.is_empty() {
            let list: Vec<String> = self.allowed_targets.iter().map(ToString::to_string).collect();
            warnings.push(format!("webhooks may point to addresses in {}", list.join(", ")));
        }
        warnings
    }
}

/// The shortest wait for replicas.
const TENTH: Duration = Duration::from_millis(100);

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn absolute(cwd: &Path, text: &str) -> PathBuf {
    // through components, so that `./.duepost` loses its dot: the path of a socket is short
    cwd.join(text).components().collect()
}

/// A file that must be there; it is read or run later, and the start is the time to say so.
fn file(cwd: &Path, text: &str) -> Result<PathBuf, Wrong> {
    let path = absolute(cwd, text);
    if path.is_file() { Ok(path) } else { Err("is not a file".to_owned()) }
}

fn durability(text: &str) -> Result<Option<Durability>, Wrong> {
    let named = Durability::NAMED.into_iter().find(|level| level.as_str() == text);
    if named.is_some() || text == "auto" { Ok(named) } else { Err("is none of auto, memory, disk, replica".to_owned()) }
}

fn log_format(text: &str) -> Result<LogFormat, Wrong> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is neither text nor json".to_owned()),
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The environment of this process, for [`Config::load`]. What is not UTF-8 matters only under our names.
///
/// # Errors
/// A variable of ours that is not UTF-8.
#[allow(clippy::disallowed_methods)] // the one place that reads it
pub fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let mut all = Vec::new();
    for (name, text) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match text.into_string() {
            Ok(text) => all.push((name, text)),
            Err(_) if name.starts_with(settings::PREFIX) || name == "SSL_CERT_FILE" => {
                return Err(ConfigError::Encoding(name));
            }
            Err(_) => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
