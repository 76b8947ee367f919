//! The bell: scripts ring it (PUBLISH) when somebody may have to wake earlier. A hint only: who misses it looks at the
//! agenda within a second.

use std::{sync::Arc, time::Duration};

use deadpool_redis::redis;
use futures_util::StreamExt as _;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{node::Node, topology::Topology};
use crate::domain::{id::QueueName, time::UnixMs};

/// Rings kept for a listener that is busy; one that falls behind looks at everything.
const BACKLOG: usize = 4096;
/// The subscription is asked this often whether it lives.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Pauses between attempts to subscribe.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What the bell says.
#[derive(Debug, Clone)]
pub enum Ring {
    /// A queue's next instants; `None` = never.
    Queue {
        /// Which queue.
        queue: QueueName,
        /// The first instant at which a pull could take something.
        pull: Option<UnixMs>,
        /// The first instant at which a push could.
        push: Option<UnixMs>,
    },
    /// Rings may have been missed: look at the agendas.
    Look,
}

/// Hands rings to listeners.
#[derive(Debug, Clone)]
pub struct Bell {
    rings: broadcast::Sender<Ring>,
}

impl Default for Bell {
    fn default() -> Self {
        Self { rings: broadcast::channel(BACKLOG).0 }
    }
}

impl Bell {
    /// A listener hears what is rung from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Ring> {
        self.rings.subscribe()
    }

    /// Keeps the subscription until `stop`. Any node of a Cluster hears what is rung at any other, so one that does not
    /// answer is left for the next; elsewhere it is the primary's.
    pub async fn run(self, topology: Arc<Topology>, channel: String, stop: CancellationToken) {
        let mut pause = RECONNECT.0;
        let mut turn = 0;
        loop {
            let table = topology.table();
            let node = table.nodes.get(turn % table.nodes.len().max(1)).cloned();
            let heard = tokio::select! {
                () = stop.cancelled() => return,
                heard = self.subscribe(node.as_ref(), &channel, &mut pause) => heard,
            };
            if let Some(node) = &node {
                topology.calm.disturb(topology.table().shards_of(node));
            }
            topology.suspect();
            turn = turn.wrapping_add(1);
            if let Err(error) = heard {
                tracing::debug!(%error, "the bell's subscription broke; subscribing again");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RECONNECT.1),
            }
        }
    }

    async fn subscribe(&self, node: Option<&Arc<Node>>, channel: &str, pause: &mut Duration) -> redis::RedisResult<()> {
        let late = || redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let Some(node) = node else { return Err(late()) };
        let client = &node.client;
        let subscription = tokio::time::timeout(PING_EVERY, client.get_async_pubsub()).await.map_err(|_| late())??;
        let (mut sink, mut rings) = subscription.split();
        tokio::time::timeout(PING_EVERY, sink.subscribe(channel)).await.map_err(|_| late())??;
        *pause = RECONNECT.0;
        let _ = self.rings.send(Ring::Look); // nobody listening is fine
        let mut ping = tokio::time::interval(PING_EVERY);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = node.gone.cancelled() => return Ok(()),
                message = rings.next() => match message {
                    Some(message) => {
                        let _ = self.rings.send(parse(message.get_payload_bytes()).unwrap_or(Ring::Look));
                    }
                    None => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
                },
                _ = ping.tick() => {
                    let pong = tokio::time::timeout(PING_EVERY, sink.ping::<redis::Value>());
                    pong.await.map_err(|_| late())??;
                }
            }
        }
    }
}

/// `queue pull push`, `-` = never.
fn parse(payload: &[u8]) -> Option<Ring> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    let queue = QueueName::parse(words.next()?).ok()?;
    let mut instant = || match words.next()? {
        "-" => Some(None),
        number => super::reply::parse_number(number).map(|n| Some(UnixMs(n))),
    };
    Some(Ring::Queue { queue, pull: instant()?, push: instant()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_read_or_taken_as_a_reason_to_look() {
        let Some(Ring::Queue { queue, pull, push }) = parse(b"orders 1796061300000 -") else { panic!("not read") };
        assert_eq!((queue.as_str(), pull, push), ("orders", Some(UnixMs(1_796_061_300_000)), None));
        for bad in [&b""[..], b"orders", b"orders 1", b"or{ders} 1 1", b"orders x y", &[0xff]] {
            assert!(parse(bad).is_none());
        }
    }
}
