//! The Redis of a start: private or somebody else's, waited for, and judged.

use std::time::Duration;

use tokio::time::Instant;

use super::AppError;
use crate::{
    config::{Config, Mode},
    domain::durability::Durability,
    store::{
        Fate, RedisInfo, Servers, Store,
        embedded::{AppendFsync, Embedded, EmbeddedConfig, Version},
    },
};

/// How often the wait for Redis is spoken of.
const WAIT_LINE_EVERY: Duration = Duration::from_secs(5);
/// Pause between two tries to reach Redis at start.
const WAIT_PAUSE: Duration = Duration::from_millis(200);
/// A refusal that only another set-up can cure is waited out for so long: whoever sets Redis up may not be done yet.
const SET_UP_PATIENCE: Duration = Duration::from_secs(5);
/// The oldest Redis that has all commands the scripts use.
pub const OLDEST: &str = "6.2";

/// Our own binary, to start the private Redis through: on Linux the running one, also after an upgrade in place.
fn launcher() -> std::io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// The Redis in use: private, or somebody else's.
pub struct Redis {
    pub servers: Servers,
    /// For people and logs: no password.
    pub shown: String,
    pub private: Option<Embedded>,
}

impl Redis {
    pub async fn start(config: &Config, mode: Mode) -> Result<Self, AppError> {
        if let Some(url) = &config.redis {
            let servers = Servers::Single(url.expose().to_owned());
            return Ok(Self { servers, shown: url.to_string(), private: None });
        }
        if let Some(cluster) = &config.redis_cluster {
            let servers = Servers::Cluster(cluster.expose());
            return Ok(Self { servers, shown: format!("Cluster {cluster}"), private: None });
        }
        if let Some(sentinel) = &config.redis_sentinel {
            let servers = Servers::Sentinel {
                sentinels: sentinel.nodes.expose_with(sentinel.user.as_deref(), sentinel.password.as_deref()),
                master: sentinel.master.clone(),
                nodes: sentinel.nodes.expose().swap_remove(0),
            };
            let shown = format!("{} of Sentinels {}", sentinel.master, sentinel.nodes);
            return Ok(Self { servers, shown, private: None });
        }
        let appendfsync = match config.private_durability(mode) {
            Durability::Memory => AppendFsync::EverySec,
            _ => AppendFsync::Always,
        };
        let private = Embedded::start(EmbeddedConfig {
            data_dir: config.data_dir.clone(),
            appendfsync,
            server_bin: config.redis_server_bin.clone(),
            launcher: launcher()?,
        })
        .await?;
        let shown = format!(
            "private {} in {}, appendfsync {}",
            private.server(),
            private.data_dir().display(),
            appendfsync.as_str()
        );
        Ok(Self { servers: Servers::Single(private.url().to_owned()), shown, private: Some(private) })
    }

    pub fn gave_up(&self) -> impl Future<Output = String> + use<> {
        let waiting = self.private.as_ref().map(Embedded::gave_up);
        async {
            match waiting {
                Some(waiting) => waiting.await,
                None => std::future::pending().await,
            }
        }
    }

    pub async fn stop(self) {
        if let Some(private) = self.private {
            private.stop().await;
        }
    }
}

/// Asks until Redis answers, and says now and then what is waited for. What only another set-up can cure is said at once, and
/// given up when it lasts: Redis may be in the middle of its own set-up.
pub async fn wait_for(store: &Store, shown: &str) -> Result<RedisInfo, AppError> {
    let (mut said, mut refused): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let error = match store.ping().await {
            Ok(info) => return Ok(info),
            Err(error) => error,
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        if error.fate() == Fate::NotReady {
            let since = refused.get_or_insert_with(|| {
                tracing::error!("Redis ({shown}) refuses the service: {cause}; given up in {SET_UP_PATIENCE:?}");
                Instant::now()
            });
            if since.elapsed() > SET_UP_PATIENCE {
                return Err(AppError::RedisRefuses { shown: shown.to_owned(), cause });
            }
        } else {
            refused = None;
            if said.is_none_or(|at| at.elapsed() > WAIT_LINE_EVERY) {
                tracing::warn!("waiting for Redis ({shown}): {error}: {cause}");
                said = Some(Instant::now());
            }
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Refuses what cannot work, and says aloud what may lose tasks.
pub fn judge(info: &RedisInfo, servers: &Servers) -> Result<(), AppError> {
    if info.clustered && !matches!(servers, Servers::Cluster(_)) {
        return Err(AppError::RedisIsCluster);
    }
    let (version, oldest) = (Version::parse(&info.redis_version), Version::parse(&format!("v={OLDEST}.0")));
    let version = version.or_else(|| Version::parse(&format!("v={}", info.redis_version)));
    if version.zip(oldest).is_some_and(|(version, oldest)| version < oldest) {
        return Err(AppError::RedisTooOld(info.version.clone()));
    }
    if !info.eviction.is_empty() && info.eviction != "noeviction" {
        tracing::warn!("MAY DROP TASKS: maxmemory-policy of this Redis is {}; set it to noeviction", info.eviction);
    }
    Ok(())
}
