//! Changes that are acknowledged only when replicas (or disks) have them. `WAIT` blocks its connection and covers what
//! was written on it before, so these calls have a lane of their own, and go in groups: those that came while a group was
//! under way make up the next one, and share one `WAIT`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_redis::redis::{self, Cmd, RedisError, Value};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{error::StoreError, pool::Lane, promise::Wait, script::Call};

/// Calls of one group.
const MAX_GROUP: usize = 128;
/// Calls that may wait; past it callers wait.
const BACKLOG: usize = 4096;

/// One call, and whom to tell.
struct Job {
    call: &'static str,
    shard: u16,
    cmd: Cmd,
    wait: Wait,
    within: Duration,
    answer: oneshot::Sender<Result<Value, StoreError>>,
}

/// Sends calls in groups with one `WAIT` each.
pub struct Waits(mpsc::Sender<Job>);

impl Waits {
    /// Starts the loop; it ends when this is dropped.
    pub fn start(lane: Lane) -> Self {
        let (jobs, inbox) = mpsc::channel(BACKLOG);
        tokio::spawn(gather(Arc::new(lane), inbox));
        Self(jobs)
    }

    /// Sends a call and waits until it is covered.
    ///
    /// # Errors
    /// [`StoreError::NotCovered`]: it was done, and may be lost. Else see [`StoreError::fate`].
    pub async fn send(&self, call: &Call<'_>, wait: Wait, within: Duration) -> Result<Value, StoreError> {
        let submit = async |cmd: Cmd| {
            let (answer, answered) = oneshot::channel();
            let job = Job { call: call.name(), shard: call.shard(), cmd, wait, within, answer };
            self.0.send(job).await.map_err(|_| StoreError::Stopping)?;
            answered.await.map_err(|_| StoreError::Stopping)?
        };
        match submit(call.by_hash().clone()).await {
            Err(StoreError::Call { cause, .. }) if super::script::is_no_script(&cause) => {
                submit(call.with_source()).await
            }
            answer => answer,
        }
    }
}

#[derive(Default)]
struct Group {
    jobs: Vec<Job>,
    under_way: bool,
}

async fn gather(lane: Arc<Lane>, mut inbox: mpsc::Receiver<Job>) {
    let mut groups: HashMap<usize, Group> = HashMap::new(); // by primary
    let mut sent: JoinSet<usize> = JoinSet::new();
    let mut came = Vec::with_capacity(MAX_GROUP);
    loop {
        tokio::select! {
            n = inbox.recv_many(&mut came, MAX_GROUP) => {
                if n == 0 {
                    return;
                }
                for job in came.drain(..) {
                    groups.entry(lane.place(job.shard)).or_default().jobs.push(job);
                }
            }
            Some(done) = sent.join_next() => match done {
                Ok(place) => groups.entry(place).or_default().under_way = false,
                Err(error) => {
                    tracing::error!(%error, "a group of changes broke");
                    groups.values_mut().for_each(|group| group.under_way = false); // it does not say which
                }
            },
        }
        for (place, group) in &mut groups {
            if group.under_way || group.jobs.is_empty() {
                continue;
            }
            group.under_way = true;
            let (lane, place) = (Arc::clone(&lane), *place);
            let jobs = group.jobs.drain(..group.jobs.len().min(MAX_GROUP)).collect();
            sent.spawn(async move {
                send(&lane, jobs).await;
                place
            });
        }
    }
}

async fn send(lane: &Lane, jobs: Vec<Job>) {
    let Some(first) = jobs.first() else { return };
    let (shard, wait) = (first.shard, first.wait);
    let within = u64::try_from(first.within.as_millis()).unwrap_or(u64::MAX);
    let mut pipeline = redis::pipe();
    for job in &jobs {
        pipeline.add_command(job.cmd.clone());
    }
    match wait {
        Wait::No => {}
        Wait::Replicas(n) => _ = pipeline.cmd("WAIT").arg(n).arg(within),
        Wait::Disks(n) => _ = pipeline.cmd("WAITAOF").arg(1).arg(n).arg(within),
    }
    let answers = match lane.pipe("wait", shard, pipeline.ignore_errors()).await {
        Ok(Value::Array(answers)) => answers,
        Ok(_) => return tell_all(jobs, &StoreError::Answer { call: "wait", what: "an array" }),
        Err(error) => return tell_all(jobs, &error),
    };
    let mut answers = answers.into_iter();
    let answers_of_jobs: Vec<Value> = answers.by_ref().take(jobs.len()).collect();
    let covered = is_covered(wait, answers.next());
    for (job, answer) in jobs.into_iter().zip(answers_of_jobs) {
        let (call, covered) = (job.call, covered && job.wait == wait);
        let answer = match answer.extract_error() {
            Err(cause) => Err(StoreError::Call { call, cause, unknown: false }),
            Ok(_) if !covered => Err(StoreError::NotCovered { call }),
            Ok(value) => Ok(value),
        };
        let _ = job.answer.send(answer); // a caller that went away does not mind
    }
}

fn tell_all(jobs: Vec<Job>, error: &StoreError) {
    for job in jobs {
        let _ = job.answer.send(Err(error.clone()));
    }
}

fn is_covered(wait: Wait, answer: Option<Value>) -> bool {
    let count = |value: &Value| match value {
        Value::Int(n) => usize::try_from(*n).unwrap_or(0),
        _ => 0,
    };
    match (wait, answer) {
        (Wait::No, _) => true,
        (Wait::Replicas(needed), Some(value)) => count(&value) >= needed,
        (Wait::Disks(needed), Some(Value::Array(counts))) => {
            counts.first().map_or(0, count) >= 1 && counts.get(1).map_or(0, count) >= needed
        }
        (_, other) => {
            let error = other.map(Value::extract_error).and_then(Result::err);
            tracing::warn!(error = error.as_ref().map(RedisError::to_string), "Redis does not say who has a change");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_or_an_unreadable_count_is_not_covered() {
        let disks = |local, replicas| Some(Value::Array(vec![Value::Int(local), Value::Int(replicas)]));
        for (wait, answer, covered) in [
            (Wait::Replicas(2), Some(Value::Int(2)), true),
            (Wait::Replicas(2), Some(Value::Int(3)), true),
            (Wait::Replicas(2), Some(Value::Int(1)), false),
            (Wait::Replicas(1), None, false),
            (Wait::Replicas(1), Some(Value::Nil), false),
            (Wait::Disks(0), disks(1, 0), true),
            (Wait::Disks(1), disks(1, 1), true),
            (Wait::Disks(1), disks(1, 0), false),
            (Wait::Disks(0), disks(0, 2), false),
            (Wait::Disks(0), Some(Value::Int(1)), false),
            (Wait::No, None, true),
        ] {
            assert_eq!(is_covered(wait, answer.clone()), covered, "{wait:?} {answer:?}");
        }
    }
}
