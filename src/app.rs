//! Composition root: builds everything, owns the order of start and of shutdown.
//!
//! Start: signals, port, Redis, store, worker, API. Shutdown: `/readyz` says so, the listener closes and no new claims are
//! made, calls and attempts under way finish within the grace, what is left is given back, outcomes are settled, then the
//! private Redis ends. A second signal exits at once.

mod fsck;
mod redis;

use std::{io::Write as _, sync::Arc, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use self::redis::{Redis, judge, wait_for};
use crate::{
    banner,
    config::{Config, Mode},
    delivery::{self, Delivery, DeliveryConfig, DeliveryError},
    domain::{address::AddressPolicy, id::Uid, round::MAX_RECLAIMS, secret::SECRET_BYTES},
    health::Health,
    http::{self, Api, Auth, Ids, Limits, Receiver, ServeOptions},
    store::{Clock, Promise, RedisInfo, Seal, Store, StoreConfig, StoreError, embedded::EmbeddedError},
    telemetry::{Metrics, Traces},
    worker::{Worker, WorkerConfig},
};

pub use fsck::fsck;

/// A lost worker's tasks are taken up after so much undisturbed time with Redis.
const LEASE_GRACE: Duration = Duration::from_secs(3);
/// At a stop, the last traces are sent for so long.
const TRACES_AT_STOP: Duration = Duration::from_secs(3);

/// Why the service ended or did not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The port is taken, or not ours to take.
    #[error("cannot listen on {address}: {cause}; choose another with --listen")]
    Listen {
        /// What was asked for.
        address: std::net::SocketAddr,
        /// What the system says.
        #[source]
        cause: std::io::Error,
    },
    /// There is no private Redis to be had.
    #[error("{0}")]
    Embedded(#[from] EmbeddedError),
    /// The private Redis ended again and again.
    #[error("the private Redis does not stay up: {0}")]
    EmbeddedGaveUp(String),
    /// The URL of Redis cannot be used.
    #[error("the Redis URL cannot be used: {0}")]
    RedisUrl(String),
    /// Wrong password, no such database, a certificate that is not to be trusted, a user who may not.
    #[error("Redis ({shown}) refuses the service: {cause}; check user, password, database and certificate of its URL")]
    RedisRefuses {
        /// Which Redis, without its password.
        shown: String,
        /// What it says.
        cause: String,
    },
    /// It lacks commands that the scripts need.
    #[error("{0} is too old: Duepost needs Redis {oldest} or later", oldest = redis::OLDEST)]
    RedisTooOld(String),
    /// A node of a Cluster was given as the one Redis.
    #[error("the Redis at --redis is a node of a Cluster, which holds only a part of the keys: use --redis-cluster")]
    RedisIsCluster,
    /// Deliveries cannot begin.
    #[error("deliveries cannot begin: {0}")]
    Delivery(#[from] DeliveryError),
    /// A command that looks once does not wait.
    #[error("Redis cannot be read: {0}")]
    Store(#[from] StoreError),
    /// Signals cannot be waited for, or the like.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
}

impl AppError {
    /// Whether the set-up has to change before another start can work (exit code 78).
    #[must_use]
    pub fn is_set_up(&self) -> bool {
        matches!(
            self,
            Self::Embedded(EmbeddedError::NotFound(_) | EmbeddedError::TooOld { .. })
                | Self::RedisUrl(_)
                | Self::RedisRefuses { .. }
                | Self::RedisTooOld(_)
                | Self::RedisIsCluster
                | Self::Delivery(_)
        )
    }
}

/// SIGTERM and Ctrl-C.
struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Takes as many file descriptors as may be had: each client and each call needs one. The soft limit, often 1024, is only
/// there for programs that use `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit of file descriptors stays as it is");
    }
}

/// Runs the service until it is told to stop.
///
/// # Errors
/// See [`AppError`].
pub async fn run(config: Config, mode: Mode) -> Result<(), AppError> {
    raise_descriptor_limit();
    let mut signals = Signals::new()?;
    let cause = |cause| AppError::Listen { address: config.listen, cause };
    let listener = TcpListener::bind(config.listen).await.map_err(cause)?;
    let address = listener.local_addr()?;
    let redis = tokio::select! {
        redis = Redis::start(&config, mode) => redis?,
        name = signals.next() => {
            tracing::info!("{name} before the start was over");
            return Ok(());
        }
    };

    let prepared = tokio::select! {
        prepared = Prepared::new(&config, &redis) => prepared.map(Some),
        name = signals.next() => {
            tracing::info!("{name} while waiting for Redis");
            Ok(None)
        }
    };
    let Prepared { store, metrics, info, policy, delivery, traces } = match prepared {
        Ok(Some(prepared)) => prepared,
        given_up => {
            redis.stop().await;
            return given_up.map(|_| ());
        }
    };
    let health = Arc::new(Health::default());
    let stop = CancellationToken::new();
    let bell = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move { store.keep_bell(stop).await }
    });
    let durability = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move { store.keep_promise(stop).await }
    });
    let worker_config = WorkerConfig {
        lease: config.lease,
        slots_per_webhook: config.slots_per_webhook,
        slots: config.slots,
        max_reclaims: MAX_RECLAIMS,
    };
    let dice = Arc::new(fastrand::f64);
    let worker = Worker::start(
        worker_config,
        store.clone(),
        delivery.clone(),
        Arc::clone(&metrics),
        traces.clone(),
        Arc::clone(&health),
        dice,
    );
    let api = Api {
        store: store.clone(),
        metrics,
        traces: traces.clone(),
        health: Arc::clone(&health),
        auth: auth(&config),
        limits: Limits {
            max_payload: config.max_payload,
            max_batch: config.max_batch,
            max_delay: config.max_delay,
            max_requests: config.max_requests,
            max_claims: config.max_claims,
        },
        policy,
        auto_create: !config.no_auto_create,
        ids: ids(),
        request_log: config.request_log,
        probe: http::Prober(delivery),
        dev: (mode == Mode::Dev).then(receiver),
    };
    let stop_http = CancellationToken::new();
    let serve_options = ServeOptions { drain: config.drain, ..ServeOptions::default() };
    let mut server = tokio::spawn(http::serve(listener, http::router(api), serve_options, stop_http.clone()));

    let told = banner::text(mode, address, &redis.shown, &info, store.durability());
    print(&told);
    let gave_up = redis.gave_up();
    tokio::pin!(gave_up);
    let mut result = Ok(());
    tokio::select! {
        name = signals.next() => tracing::info!("{name}: stopping; attempts under way have {:?}", config.drain),
        ended = &mut server => tracing::error!(?ended, "the API ended by itself"),
        why = &mut gave_up => result = Err(AppError::EmbeddedGaveUp(why)),
    }

    health.stop();
    store.end_waiting();
    stop_http.cancel();
    let shutdown = async {
        let _ = tokio::join!(worker.stop(config.drain), async {
            if !server.is_finished() {
                let _ = (&mut server).await;
            }
            store.given_back().await;
        });
        stop.cancel();
        let _ = tokio::join!(bell, durability);
        tokio::join!(redis.stop(), traces.stop(TRACES_AT_STOP));
    };
    tokio::select! {
        () = shutdown => tracing::info!("stopped"),
        name = signals.next() => {
            tracing::warn!("{name} again: exiting at once; what was under way comes back when its leases end");
            std::process::exit(1);
        }
    }
    result
}

fn open_store(config: &Config, redis: &Redis, metrics: Arc<Metrics>) -> Result<Store, AppError> {
    let store_config = StoreConfig {
        servers: redis.servers.clone(),
        prefix: config.prefix.clone(),
        auto_create: !config.no_auto_create,
        lease_grace: LEASE_GRACE,
        promise: Promise {
            named: config.durability,
            replicas: config.replicas,
            wait: config.replica_timeout,
            ..Promise::default()
        },
        seal: config.secret_key.as_ref().map(|key| Seal::with(key.bytes())).unwrap_or_default(),
    };
    Store::new(store_config, Arc::new(Clock::default()), metrics).map_err(|e| AppError::RedisUrl(e.to_string()))
}

/// Prints to standard output; a reader that has gone is no reason to end.
fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// What a start can fail at once Redis is there, or thought to be.
struct Prepared {
    store: Store,
    metrics: Arc<Metrics>,
    info: RedisInfo,
    policy: AddressPolicy,
    delivery: Delivery,
    traces: Traces,
}

impl Prepared {
    async fn new(config: &Config, redis: &Redis) -> Result<Self, AppError> {
        let metrics = Arc::new(Metrics::new(config.metrics_queue_labels));
        let store = open_store(config, redis, Arc::clone(&metrics))?;
        let info = wait_for(&store, &redis.shown).await?;
        judge(&info, &redis.servers)?;
        let policy = AddressPolicy {
            allow_private: config.allow_private_targets,
            allow_loopback: config.allow_private_targets,
            allowed: config.allowed_targets.clone(),
        };
        let delivery = Delivery::new(DeliveryConfig {
            policy: policy.clone(),
            extra_roots: config.ssl_cert_file.clone(),
            user_agent: concat!("duepost/", env!("CARGO_PKG_VERSION")).to_owned(),
        })?;
        Ok(Self { store, metrics, info, policy, delivery, traces: traces(config)? })
    }
}

/// Traces if the environment asks for them; without a way to send them the service runs all the same.
fn traces(config: &Config) -> Result<Traces, DeliveryError> {
    let Some(timeout) = config.traces else { return Ok(Traces::default()) };
    let tls = delivery::client_tls(config.ssl_cert_file.as_deref())?;
    Ok(Traces::start(tls, timeout).unwrap_or_else(|why| {
        tracing::warn!("no traces: {why}");
        Traces::default()
    }))
}

/// Who may call: whoever has a key, or everybody where there are none.
fn auth(config: &Config) -> Auth {
    match config.keys.clone() {
        None => Auth::open(),
        Some(keys) => Auth::keys(keys),
    }
}

/// New ids and secrets: the one place where they come from.
fn ids() -> Ids {
    #[allow(clippy::disallowed_methods)] // randomness and time come in here
    let uid = || Uid(uuid::Uuid::now_v7());
    let secret = || {
        let mut key = [0; SECRET_BYTES];
        getrandom::fill(&mut key).map_or_else(|error| panic!("no randomness: {error}"), |()| key)
    };
    Ids { uid: Box::new(uid), secret: Box::new(secret), dice: Box::new(fastrand::f64) }
}

/// The receiver of `dev`: shows on the terminal what arrives.
fn receiver() -> Receiver {
    Receiver::new(|delivery| {
        print(&format!(
            "--> {} {}  task {} of {}, attempt {}: {}\n",
            delivery.received_at,
            delivery.path,
            delivery.header("duepost-task-id"),
            delivery.header("duepost-queue"),
            delivery.header("duepost-attempt"),
            delivery.body,
        ));
    })
}
