//! The HTTP room: the only one that knows axum, utoipa and the wire forms. [`router`] is the table of contents.
//!
//! A request passes `request` (id, log, metrics, panics, problems), `auth`, `shed`, an extractor that parses what came, one call
//! of the store, and leaves as one of the forms of `wire`. Refusals of the store are answers; its errors are problems.
//! Neighbours: [`domain`](crate::domain), [`store`](crate::store); `webhooks::probe` makes one delivery
//! itself, the test of a webhook; `app` builds an [`Api`] and gives it to [`serve`].

use std::{fmt, sync::Arc, time::Duration};

use axum::Router;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    domain::{
        address::AddressPolicy,
        id::{QueueName, Uid},
        secret::SECRET_BYTES,
    },
    health::Health,
    store::{Change, Decision, QueueView, Store},
    telemetry::{Metrics, Traces},
};

mod auth;
mod batch;
mod dev;
mod docs;
mod durability;
mod edits;
mod extract;
mod fields;
mod known;
mod object;
mod openapi;
mod problem;
mod pull;
mod queues;
mod request;
pub mod serve;
mod shed;
mod stream;
mod system;
mod tasks;
mod upkeep;
mod webhooks;
mod wire;

use self::problem::Problem;
pub use self::{
    auth::Auth,
    dev::{Delivery, Receiver},
    openapi::openapi_json,
    serve::{ServeOptions, serve},
    webhooks::probe::Prober,
};

/// What a request may ask for at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a payload.
    pub max_payload: usize,
    /// Bytes of a batch's body.
    pub max_batch: usize,
    /// How far away a task's time may be.
    pub max_delay: Duration,
    /// Calls under way at once.
    pub max_requests: usize,
    /// Claims under way at once, most of them waiting; they are no part of the calls.
    pub max_claims: usize,
}

/// Where ids and secrets come from: clock and randomness are the composition root's.
pub struct Ids {
    /// A new UUIDv7.
    pub uid: Box<dyn Fn() -> Uid + Send + Sync>,
    /// Random bytes for a webhook's secret.
    pub secret: Box<dyn Fn() -> [u8; SECRET_BYTES] + Send + Sync>,
    /// Even random numbers in [0, 1), for jitter.
    pub dice: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ids")
    }
}

/// All that handlers need.
pub struct Api {
    /// Everything that is kept.
    pub store: Store,
    /// Figures of this process.
    pub metrics: Arc<Metrics>,
    /// Spans of requests that enqueue.
    pub traces: Traces,
    /// What `/readyz` asks.
    pub health: Arc<Health>,
    /// Who may call.
    pub auth: Auth,
    /// Sizes and spans.
    pub limits: Limits,
    /// Which targets are refused where a URL shows them.
    pub policy: AddressPolicy,
    /// Whether a queue comes to life with its first webhook; the store knows the same about tasks.
    pub auto_create: bool,
    /// New ids and secrets.
    pub ids: Ids,
    /// Whether every request is a line of the log.
    pub request_log: bool,
    /// Makes the calls that test a webhook.
    pub probe: Prober,
    /// The receiver of `duepost dev`.
    pub dev: Option<Receiver>,
}

impl Api {
    /// A queue's set-up.
    async fn view(&self, queue: &QueueName) -> Result<QueueView, Problem> {
        let view = self.store.describe(queue).await.map_err(Problem::of_read)?;
        view.ok_or_else(|| Problem::queue_not_found(queue))
    }

    /// Changes a queue's set-up as [`Store::change`] does; gives what stands then.
    async fn change(
        &self,
        queue: &QueueName,
        create: bool,
        decide: impl FnMut(&QueueView) -> Result<Change, Problem>,
    ) -> Result<Box<QueueView>, Problem> {
        match self.store.change(queue, create, decide).await? {
            Decision::Changed { view, .. } => Ok(view),
            Decision::Refused(problem) => Err(problem),
            Decision::NoQueue => Err(Problem::queue_not_found(queue)),
        }
    }
}

/// The state of all handlers.
pub(crate) struct State {
    api: Api,
    known: known::Known,
    rooms: shed::Rooms,
}

impl State {
    fn new(api: Api) -> Self {
        Self { rooms: shed::Rooms::new(&api.limits), known: known::Known::default(), api }
    }
}

impl std::ops::Deref for State {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

type Shared = Arc<State>;

/// Every operation of the contract: those that need a key, and those that do not.
fn operations() -> (OpenApiRouter<Shared>, OpenApiRouter<Shared>) {
    let guarded = OpenApiRouter::new()
        .routes(routes!(tasks::create_task, tasks::list_tasks))
        .routes(routes!(tasks::get_task, tasks::cancel_task, edits::put_task, edits::patch_task))
        .routes(routes!(edits::run_task))
        .routes(routes!(batch::create_tasks))
        .routes(routes!(pull::claim_tasks))
        .routes(routes!(pull::ack_task))
        .routes(routes!(pull::nack_task))
        .routes(routes!(pull::extend_task))
        .routes(routes!(queues::list_queues))
        .routes(routes!(queues::get_queue, queues::put_queue, queues::patch_queue, upkeep::delete_queue))
        .routes(routes!(queues::get_queue_stats))
        .routes(routes!(upkeep::pause_queue))
        .routes(routes!(upkeep::resume_queue))
        .routes(routes!(upkeep::purge_queue))
        .routes(routes!(upkeep::replay_queue))
        .routes(routes!(webhooks::create_webhook, webhooks::list_webhooks))
        .routes(routes!(
            webhooks::get_webhook,
            webhooks::put_webhook,
            webhooks::patch_webhook,
            webhooks::delete_webhook
        ))
        .routes(routes!(webhooks::secrets::rotate_webhook_secret))
        .routes(routes!(webhooks::probe::test_webhook))
        .routes(routes!(system::get_metrics));
    let open = OpenApiRouter::new()
        .routes(routes!(system::get_livez))
        .routes(routes!(system::get_readyz))
        .routes(routes!(system::get_version))
        .routes(routes!(system::get_openapi))
        .routes(routes!(docs::get_docs));
    (guarded, open)
}

/// The whole service as a router. Serve it with [`serve`], which bounds what a router cannot.
pub fn router(api: Api) -> Router {
    let receiver = api.dev.clone();
    let state: Shared = Arc::new(State::new(api));
    let (guarded, open) = operations();
    let (guarded, _) = guarded.split_for_parts();
    let (open, _) = open.split_for_parts();
    let mut router = guarded.merge(open);
    if let Some(receiver) = receiver {
        router = router.merge(dev::router(receiver));
    }
    framed(router, state)
}

/// What surrounds all routes.
fn framed(router: Router<Shared>, state: Shared) -> Router {
    router
        .fallback(system::no_route)
        .method_not_allowed_fallback(system::no_method)
        .layer((request::Surround(Arc::clone(&state)), CatchPanicLayer::custom(request::panicked)))
        .with_state(state)
}

#[cfg(test)]
mod tests;
