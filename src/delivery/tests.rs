//! Deliveries against a receiver that sends any bytes at any time, on loopback.

mod answers;
mod deadlines;
mod receiver;
mod secure;
mod target;
mod wire;

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::*;
use crate::domain::{
    address::parse_target,
    attempt::{Outcome, Report},
    secret::Secret,
    time::UnixMs,
};

/// 2026-11-30T17:25:00.123Z.
const STARTED_AT: UnixMs = UnixMs(1_796_059_500_123);

fn config() -> DeliveryConfig {
    DeliveryConfig {
        policy: AddressPolicy { allow_loopback: true, ..AddressPolicy::default() },
        extra_roots: None,
        user_agent: "duepost/test".to_owned(),
    }
}

fn delivery() -> Delivery {
    Delivery::new(config()).unwrap()
}

/// Only 127.0.0.1 is allowed; names are looked up in `resolver`.
fn guarded(resolver: impl Resolve) -> Delivery {
    let policy = AddressPolicy { allowed: vec!["127.0.0.1/32".parse().unwrap()], ..AddressPolicy::default() };
    Delivery::with_resolver(DeliveryConfig { policy, ..config() }, Arc::new(resolver)).unwrap()
}

fn call(url: &str) -> Call<'static> {
    Call {
        to: Destination::new(&parse_target(url).unwrap()),
        body: r#"{"order_id": 1042}"#.into(),
        headers: Vec::new(),
        signers: Signers::new(&[Secret::from_bytes(&[7; 32]).unwrap()]),
        timeout: Duration::from_secs(30),
        webhook_id: uuid::Uuid::from_u128(0x01a2_2d7d_0de0_7c3a_9f00_1b2c_3d4e_5f60),
        started_at: STARTED_AT,
        queue: "orders",
        task_id: "order-1042-timeout",
        attempt: 1,
        run_at: UnixMs(1_796_059_500_000),
        traceparent: None,
    }
}

fn error(report: &Report) -> &str {
    report.error.as_deref().unwrap_or_default()
}

/// A resolver made of a closure: the second implementation, which may lie.
struct Names<F>(F);

impl<F> Resolve for Names<F>
where
    F: Fn(&str) -> std::io::Result<Vec<std::net::IpAddr>> + Send + Sync + 'static,
{
    fn resolve(&self, host: String) -> BoxFuture<'static, std::io::Result<Vec<std::net::IpAddr>>> {
        Box::pin(std::future::ready(self.0(&host)))
    }
}
