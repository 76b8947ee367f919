//! Batches that form by themselves: what arrives while calls are under way makes up the next one. No timer, so an idle
//! service adds no delay; under load Redis runs one script for many tasks.

use std::{collections::HashMap, future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use super::{error::StoreError, keys::shard_of};
use crate::domain::id::QueueName;

/// Most jobs of one queue in a script call.
pub const MAX_JOBS: usize = 500;
/// Most bytes of payload in a script call (one job always fits).
pub const MAX_BYTES: usize = 1 << 20;
/// Jobs taken up at once, over all queues.
const MAX_DRAIN: usize = 2048;
/// Jobs that may wait; past it callers wait.
const BACKLOG: usize = 16_384;

/// Jobs that one script does many of.
pub trait Batch: Send + Sync + 'static {
    /// One thing to do.
    type Job: Send + 'static;
    /// What comes of it.
    type Answer: Send + 'static;

    /// Whether those that are ready to run get their turn before a round is closed: the first job of one wakes the batcher
    /// before others that are as far can come. It pays where a call costs much more than a job.
    const LETS_OTHERS_IN: bool = false;

    /// The queue that a job belongs to.
    fn queue(job: &Self::Job) -> &QueueName;
    /// Its share of [`MAX_BYTES`].
    fn bytes(job: &Self::Job) -> usize;
    /// Does jobs of one queue; answers in their order.
    fn run(
        &self,
        queue: QueueName,
        jobs: Vec<Self::Job>,
    ) -> impl Future<Output = Vec<Result<Self::Answer, StoreError>>> + Send;
}

type Slip<B> = (<B as Batch>::Job, oneshot::Sender<Result<<B as Batch>::Answer, StoreError>>);

/// Takes jobs one at a time and hands them on in batches.
pub struct Batcher<B: Batch> {
    /// One line for all, or one a shard.
    jobs: Vec<mpsc::Sender<Slip<B>>>,
}

impl<B: Batch> Batcher<B> {
    /// Starts so many loops, which share the shards and do not wait for each other; they end when the batcher is
    /// dropped.
    pub fn start(batch: B, lines: u16) -> Self {
        let batch = Arc::new(batch);
        let line = |_| {
            let (jobs, inbox) = mpsc::channel(BACKLOG);
            tokio::spawn(gather(Arc::clone(&batch), inbox));
            jobs
        };
        Self { jobs: (0..lines).map(line).collect() }
    }

    /// Does one job, together with others that are there.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn submit(&self, job: B::Job) -> Result<B::Answer, StoreError> {
        let (slip, answer) = oneshot::channel();
        let line = match self.jobs.as_slice() {
            [one] => one,
            lines => &lines[usize::from(shard_of(B::queue(&job))) % lines.len()],
        };
        line.send((job, slip)).await.map_err(|_| StoreError::Stopping)?;
        answer.await.map_err(|_| StoreError::Stopping)?
    }
}

/// One round at a time: what arrives meanwhile makes up the next one. With two of them each would be half as large, and
/// most of what a call costs is the call.
async fn gather<B: Batch>(batch: Arc<B>, mut inbox: mpsc::Receiver<Slip<B>>) {
    let mut slips = Vec::with_capacity(64);
    while inbox.recv_many(&mut slips, MAX_DRAIN).await > 0 {
        if B::LETS_OTHERS_IN {
            tokio::task::yield_now().await;
            while slips.len() < MAX_DRAIN
                && let Ok(slip) = inbox.try_recv()
            {
                slips.push(slip);
            }
        }
        let mut pieces = split::<B>(&mut slips);
        match pieces.pop() {
            Some(only) if pieces.is_empty() => run(&*batch, only).await,
            last => {
                let all = pieces.into_iter().chain(last).map(|piece| run(&*batch, piece));
                futures_util::future::join_all(all).await;
            }
        }
    }
}

/// A panic is the end of these jobs alone.
async fn run<B: Batch>(batch: &B, (queue, slips): (QueueName, Vec<Slip<B>>)) {
    let (jobs, takers): (Vec<_>, Vec<_>) = slips.into_iter().unzip();
    let Ok(answers) = AssertUnwindSafe(batch.run(queue, jobs)).catch_unwind().await else { return };
    for (answer, taker) in answers.into_iter().zip(takers) {
        let _ = taker.send(answer); // a caller that went away does not mind
    }
}

/// Groups by queue, in order, in pieces that a script may take.
fn split<B: Batch>(slips: &mut Vec<Slip<B>>) -> Vec<(QueueName, Vec<Slip<B>>)> {
    let mut pieces: Vec<Piece<B>> = Vec::new();
    let mut open: HashMap<QueueName, usize> = HashMap::new(); // queue -> its last piece
    let mut last = 0; // mostly the next slip is of the same queue
    for slip in slips.drain(..) {
        let (queue, bytes) = (B::queue(&slip.0), B::bytes(&slip.0));
        if pieces.get(last).is_none_or(|piece| piece.queue != *queue) {
            last = open.get(queue).copied().unwrap_or(usize::MAX);
        }
        match pieces.get_mut(last).filter(|piece| piece.slips.len() < MAX_JOBS && piece.room >= bytes) {
            Some(piece) => {
                piece.room -= bytes;
                piece.slips.push(slip);
            }
            None => {
                last = pieces.len();
                let (queue, room) = (queue.clone(), MAX_BYTES.saturating_sub(bytes));
                open.insert(queue.clone(), last);
                pieces.push(Piece { queue, room, slips: vec![slip] });
            }
        }
    }
    pieces.into_iter().map(|piece| (piece.queue, piece.slips)).collect()
}

/// Slips of one script call.
struct Piece<B: Batch> {
    queue: QueueName,
    /// Bytes of payload that still fit.
    room: usize,
    slips: Vec<Slip<B>>,
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Notify;

    use super::*;

    /// Notes how large each call was; a job of [`BROKEN`] breaks it.
    #[derive(Default)]
    struct Calls {
        sizes: Mutex<Vec<usize>>,
        first: Notify,
    }

    const BROKEN: usize = usize::MAX;

    struct Job(QueueName, usize);

    impl Batch for Arc<Calls> {
        type Job = Job;
        type Answer = usize;

        fn queue(job: &Job) -> &QueueName {
            &job.0
        }

        fn bytes(_: &Job) -> usize {
            0
        }

        async fn run(&self, _: QueueName, jobs: Vec<Job>) -> Vec<Result<usize, StoreError>> {
            let is_first = {
                let mut sizes = self.sizes.lock().unwrap();
                sizes.push(jobs.len());
                sizes.len() == 1
            };
            if is_first {
                self.first.notified().await;
            }
            assert!(jobs.iter().all(|job| job.1 != BROKEN), "broken on purpose");
            jobs.iter().map(|job| Ok(job.1 * 2)).collect()
        }
    }

    fn job(queue: &str, n: usize) -> Job {
        Job(QueueName::parse(queue).unwrap(), n)
    }

    #[tokio::test]
    async fn what_arrives_meanwhile_is_one_call_a_queue() {
        let calls = Arc::new(Calls::default());
        let batcher = Arc::new(Batcher::start(Arc::clone(&calls), 1));
        let submit = |job| {
            let batcher = Arc::clone(&batcher);
            tokio::spawn(async move { batcher.submit(job).await.unwrap() })
        };
        let first = submit(job("a", 1));
        while calls.sizes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (0..MAX_JOBS + 2).map(|n| submit(job(if n % 2 == 0 { "a" } else { "b" }, n))).collect();
        for _ in 0..10 {
            tokio::task::yield_now().await; // they are all in the line now
        }
        assert_eq!(calls.sizes.lock().unwrap().len(), 1, "one round at a time");
        calls.first.notify_one();
        assert_eq!(first.await.unwrap(), 2);
        for (n, other) in others.into_iter().enumerate() {
            assert_eq!(other.await.unwrap(), n * 2);
        }
        assert_eq!(*calls.sizes.lock().unwrap(), [1, MAX_JOBS / 2 + 1, MAX_JOBS / 2 + 1]);
    }

    #[tokio::test]
    async fn a_call_that_panics_takes_nobody_else_along() {
        let calls = Arc::new(Calls::default());
        calls.first.notify_one();
        let batcher = Batcher::start(Arc::clone(&calls), 1);
        assert!(batcher.submit(job("a", BROKEN)).await.is_err());
        assert_eq!(batcher.submit(job("a", 4)).await.unwrap(), 8);
    }
}
