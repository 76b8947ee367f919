//! What the terminal shows when the service is ready.

use std::{fmt::Write as _, net::SocketAddr};

use crate::{config::Mode, domain::durability::Durability, store::RedisInfo};

/// The line that programs wait for, and for `dev` what a newcomer can paste.
#[must_use]
pub fn text(mode: Mode, address: SocketAddr, redis: &str, info: &RedisInfo, durability: Durability) -> String {
    let base = format!("http://{address}");
    let mut text = String::new();
    if mode == Mode::Serve {
        let _ = writeln!(text, "listening on {base}");
        return text;
    }
    let _ = write!(
        text,
        "
  Duepost {version}: tasks, POSTed when due

  API       {base}          docs {base}/docs   metrics {base}/metrics
  Redis     {redis} ({info})
  {durability}
  Loopback and private receivers are allowed, no key is asked for: this is `dev`.

  Paste into another terminal:

    # a webhook: this service's own receiver
    curl -s {base}/queues/orders/webhooks -H 'content-type: application/json' \\
      -d '{{\"id\": \"main\", \"url\": \"{base}/dev/receiver\"}}'

    # a task that is due in 5 seconds, and one that will be cancelled
    curl -s {base}/queues/orders/tasks -H 'content-type: application/json' \\
      -d '{{\"id\": \"order-1042-timeout\", \"payload\": {{\"order_id\": 1042}}, \"delay\": \"5s\"}}'
    curl -s {base}/queues/orders/tasks -H 'content-type: application/json' \\
      -d '{{\"id\": \"order-1043-timeout\", \"payload\": {{\"order_id\": 1043}}, \"delay\": \"5s\"}}'
    curl -s -X DELETE {base}/queues/orders/tasks/order-1043-timeout

    # what arrived (it is shown here too), and the figures
    curl -s {base}/dev/receiver
    curl -s {base}/queues/orders/stats

listening on {base}
",
        version = env!("CARGO_PKG_VERSION"),
        info = info.version,
        durability = survives(durability),
    );
    text
}

const fn survives(durability: Durability) -> &'static str {
    match durability {
        Durability::None => "An answered task is lost when Redis ends: it has no append-only file.",
        Durability::Memory => "An answered task survives kill -9; a power cut may take the last second.",
        Durability::Disk => "An answered task survives a power cut.",
        Durability::Replica => "An answered task survives the loss of the primary Redis.",
    }
}
