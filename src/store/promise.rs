//! What acknowledgements stand for. A level that the settings name is enforced: where the live Redis cannot give it, the
//! service is not ready and changes nothing for clients; deliveries go on. `auto` tells what Redis gives.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use deadpool_redis::redis::{self, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Inner, RedisInfo, Store, StoreError};
use crate::domain::durability::Durability;

/// What the settings ask for.
#[derive(Debug, Clone)]
pub struct Promise {
    /// `None`: whatever Redis gives.
    pub named: Option<Durability>,
    /// With [`Durability::Replica`]: replicas that must have a change.
    pub replicas: usize,
    /// How long they are waited for.
    pub wait: Duration,
    /// How often the live Redis is asked what it gives.
    pub check_every: Duration,
}

/// While a named level is not given, Redis is asked this often.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

impl Default for Promise {
    fn default() -> Self {
        Self { named: None, replicas: 1, wait: Duration::from_secs(1), check_every: Duration::from_secs(60) }
    }
}

/// What has to follow a change before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: Redis answers when the change is as safe as it gets.
    No,
    /// `WAIT`: so many replicas have it.
    Replicas(usize),
    /// `WAITAOF`: it is on this disk, and on those of so many replicas.
    Disks(usize),
}

/// What the live Redis gives, as last asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// What changes survive.
    pub level: Durability,
    /// Why the named level is not given.
    pub short: Option<String>,
    /// What could not be seen.
    pub unverified: Option<&'static str>,
    pub(super) wait: Wait,
}

/// The last standing, and who wants it looked at anew.
#[derive(Debug, Default)]
pub struct Standings {
    last: Mutex<Option<Arc<Standing>>>,
    pub(super) doubt: Notify,
}

/// Before Redis was asked.
impl Default for Standing {
    fn default() -> Self {
        Self { level: Durability::None, short: None, unverified: None, wait: Wait::No }
    }
}

impl Standings {
    pub(super) fn last(&self) -> Arc<Standing> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone().unwrap_or_default()
    }

    /// Takes in what Redis gives now. Answers whether it is news.
    fn put(&self, now: &Standing) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let news = last.as_deref() != Some(now);
        if news {
            *last = Some(Arc::new(now.clone()));
        }
        news
    }
}

/// The first Redis and the first Valkey with WAITAOF say that they are this.
const WAITAOF_SINCE: (u64, u64) = (7, 2);
const HIDDEN: &str = "this Redis hides CONFIG, so it cannot be seen whether a power cut would lose the last second";

/// What a Redis gives of what is asked for.
fn judge(promise: &Promise, info: &RedisInfo) -> Standing {
    let always = info.appendfsync.as_deref().map(|policy| policy == "always");
    let given = match (info.append_only, always) {
        (false, _) => Durability::None,
        (true, Some(true)) => Durability::Disk,
        (true, _) => Durability::Memory,
    };
    let mut version = info.redis_version.split('.').map(|n| n.parse::<u64>().unwrap_or(0));
    let waitaof = (version.next().unwrap_or(0), version.next().unwrap_or(0)) >= WAITAOF_SINCE;
    let hidden = always.is_none().then_some(HIDDEN);
    let Some(named) = promise.named else {
        return Standing { level: given, short: None, unverified: hidden.filter(|_| info.append_only), wait: Wait::No };
    };
    let policy = info.appendfsync.as_deref().unwrap_or("hidden");
    let (mut short, mut unverified) = (None, None);
    let on_disk = named >= Durability::Disk && always != Some(true);
    if !info.append_only {
        short = Some(format!("durability {named} needs `appendonly yes`, and this Redis has no append-only file"));
    } else if on_disk && !waitaof {
        match always {
            None => unverified = hidden,
            Some(_) => short = Some(format!("durability {named} needs `appendfsync always`, and it is {policy}")),
        }
    } else if named == Durability::Replica && info.replicas < promise.replicas {
        let (needs, has) = (promise.replicas, info.replicas);
        short = Some(format!("durability replica needs {needs} replicas, and {has} are connected"));
    }
    let replicas = if named == Durability::Replica { promise.replicas } else { 0 };
    let wait = match (on_disk && waitaof, replicas) {
        (true, replicas) => Wait::Disks(replicas),
        (false, 0) => Wait::No,
        (false, replicas) => Wait::Replicas(replicas),
    };
    let level = if short.is_none() { named } else { given.min(named) };
    Standing { level, short, unverified, wait }
}

impl Inner {
    /// Refuses a client's change while the level that the settings name is not given.
    pub(super) fn must_stand(&self) -> Result<(), StoreError> {
        match &self.standings.last().short {
            Some(why) => Err(StoreError::Durability(why.clone())),
            None => Ok(()),
        }
    }
}

impl Store {
    /// What an answered change survives.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.inner.standings.last().level
    }

    /// The same, and what is wrong with it; as last asked.
    #[must_use]
    pub fn standing(&self) -> Arc<Standing> {
        self.inner.standings.last()
    }

    /// Takes in what a Redis says of itself, and tells what changed.
    pub(super) fn note_standing(&self, info: &RedisInfo) {
        if info.full {
            self.inner.note_full(); // others may have found out first
        }
        let now = judge(&self.inner.config.promise, info);
        if !self.inner.standings.put(&now) {
            return;
        }
        if now.short.is_some() {
            self.inner.standings.doubt.notify_one(); // from now on it is asked more often
        }
        match (&now.short, now.unverified) {
            (Some(why), _) => tracing::error!("NOT READY: {why}; clients' changes are refused"),
            (None, Some(why)) => tracing::warn!("UNVERIFIED durability {}: {why}", now.level),
            (None, None) if now.level == Durability::None => tracing::warn!(
                "NOT DURABLE: this Redis has no append-only file; when it ends, tasks are lost (`appendonly yes`)"
            ),
            (None, None) => tracing::info!("durability: {}", now.level),
        }
    }

    /// Asks Redis every minute what it gives, until `stop`.
    pub async fn keep_promise(&self, stop: CancellationToken) {
        let promise = &self.inner.config.promise;
        loop {
            let short = self.standing().short.is_some();
            let pause = if short { CHECK_AGAIN.min(promise.check_every) } else { promise.check_every };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = self.inner.standings.doubt.notified() => {}
            }
            if let Err(error) = self.ping().await {
                tracing::debug!(%error, "what Redis gives could not be asked");
            }
        }
    }
}

/// Asks for what `INFO` does not tell. A user who may not ask gets an error in place of an answer.
pub fn ask_config() -> redis::Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("CONFIG").arg("GET").arg("appendfsync").ignore_errors();
    commands
}

/// The policy out of the answer to [`ask_config`]; `None` where it is hidden.
pub fn read_config(answer: &Value) -> Option<String> {
    let Value::Array(answers) = answer else { return None };
    let pairs = match answers.first()? {
        Value::Array(pairs) => pairs.clone(),
        Value::Map(pairs) => pairs.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect(),
        _ => return None,
    };
    match pairs.get(1)? {
        Value::BulkString(policy) => String::from_utf8(policy.clone()).ok(),
        Value::SimpleString(policy) => Some(policy.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(version: &str, append_only: bool, fsync: Option<&str>, replicas: usize) -> RedisInfo {
        RedisInfo {
            version: format!("redis {version}"),
            redis_version: version.to_owned(),
            append_only,
            appendfsync: fsync.map(str::to_owned),
            replicas,
            eviction: "noeviction".to_owned(),
            last_write_ok: true,
            read_only: false,
            full: false,
            clustered: false,
        }
    }

    fn of(named: Option<Durability>, info: &RedisInfo) -> Standing {
        judge(&Promise { named, replicas: 2, ..Promise::default() }, info)
    }

    #[test]
    fn auto_tells_what_is_given() {
        for (aof, fsync, level) in [
            (false, Some("always"), Durability::None),
            (true, Some("no"), Durability::Memory),
            (true, Some("everysec"), Durability::Memory),
            (true, Some("always"), Durability::Disk),
            (true, None, Durability::Memory),
        ] {
            let standing = of(None, &redis("7.0.15", aof, fsync, 2));
            assert_eq!((standing.level, standing.short, standing.wait), (level, None, Wait::No), "{aof} {fsync:?}");
            assert_eq!(standing.unverified.is_some(), fsync.is_none());
        }
    }

    #[test]
    fn a_named_level_is_given_or_it_is_said_why_not() {
        use Durability::{Disk, Memory, Replica};
        for (named, version, aof, fsync, replicas, short, wait) in [
            (Memory, "7.0.15", false, Some("always"), 2, Some("appendonly yes"), Wait::No),
            (Memory, "7.0.15", true, Some("everysec"), 0, None, Wait::No),
            (Disk, "7.0.15", true, Some("always"), 0, None, Wait::No),
            (Disk, "7.0.15", true, Some("everysec"), 0, Some("it is everysec"), Wait::No),
            (Disk, "7.2.4", true, Some("everysec"), 0, None, Wait::Disks(0)),
            (Disk, "7.2.4", false, Some("always"), 0, Some("no append-only file"), Wait::No),
            (Disk, "8.0.1", true, None, 0, None, Wait::Disks(0)),
            (Replica, "7.0.15", true, Some("always"), 2, None, Wait::Replicas(2)),
            (Replica, "7.0.15", true, Some("always"), 1, Some("1 are connected"), Wait::Replicas(2)),
            (Replica, "7.0.15", true, Some("everysec"), 2, Some("appendfsync always"), Wait::Replicas(2)),
            (Replica, "7.2.4", true, Some("everysec"), 2, None, Wait::Disks(2)),
        ] {
            let standing = of(Some(named), &redis(version, aof, fsync, replicas));
            let case = format!("{named} {version} {aof} {fsync:?} {replicas}: {standing:?}");
            assert_eq!(standing.short.is_some(), short.is_some(), "{case}");
            assert!(standing.short.as_deref().unwrap_or_default().contains(short.unwrap_or_default()), "{case}");
            assert_eq!((standing.wait, standing.unverified), (wait, None), "{case}");
            assert_eq!(standing.level == named, short.is_none() || standing.level >= named, "{case}");
        }
        let hidden = of(Some(Disk), &redis("7.0.15", true, None, 0));
        assert_eq!((hidden.level, hidden.short, hidden.unverified), (Disk, None, Some(HIDDEN)));
    }

    #[test]
    fn a_refusal_in_place_of_the_policy_is_no_policy() {
        let bulk = |s: &str| Value::BulkString(s.as_bytes().to_vec());
        let pairs = Value::Array(vec![bulk("appendfsync"), bulk("always")]);
        assert_eq!(read_config(&Value::Array(vec![pairs])), Some("always".to_owned()));
        for hidden in [Value::Array(vec![]), Value::Array(vec![Value::Array(vec![])]), Value::Nil] {
            assert_eq!(read_config(&hidden), None);
        }
    }
}
