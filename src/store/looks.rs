//! Look-ups of tasks for what consumers say of them: without payloads, and in batches.

use std::sync::Arc;

use super::{
    Inner, Reply, Store, StoreError,
    batch::{Batch, MAX_BYTES},
    keys::raw_id,
    record::View,
    script,
    tasks::{Found, read_found},
};
use crate::domain::{
    id::{QueueName, TaskId},
    task::Task,
};

/// Most of one script call, which reads each record whole.
const MAX_LOOKS: usize = 64;

/// Looks up in batches.
pub struct Looks(pub(super) Arc<Inner>);

/// One task to look up.
pub struct Look {
    queue: QueueName,
    /// Its id as a member of the sets.
    member: Vec<u8>,
}

impl Batch for Looks {
    type Job = Look;
    type Answer = Found<View>;

    fn queue(job: &Look) -> &QueueName {
        &job.queue
    }

    fn bytes(_: &Look) -> usize {
        MAX_BYTES / MAX_LOOKS
    }

    async fn run(&self, queue: QueueName, jobs: Vec<Look>) -> Vec<Result<Found<View>, StoreError>> {
        let mut call = self.0.call(&script::GET, &queue, 0);
        call.arg(0);
        for job in &jobs {
            call.arg(&job.member);
        }
        match self.0.read(&call).await.and_then(|value| Reply::new("get", value)) {
            Ok(mut reply) => jobs.into_iter().map(|job| read_found(&mut reply, job.member, false)).collect(),
            Err(error) => jobs.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

impl Store {
    /// Reads one task, together with others that are asked for.
    ///
    /// # Errors
    /// Redis is out of reach, or what it answers cannot be read.
    pub(super) async fn look_up_lean(&self, queue: &QueueName, id: &TaskId) -> Result<Found<View>, StoreError> {
        self.looks.submit(Look { queue: queue.clone(), member: raw_id(id) }).await
    }

    /// The same as a task.
    pub(super) async fn get_lean(&self, queue: &QueueName, id: &TaskId) -> Result<Found<Task>, StoreError> {
        self.look_up_lean(queue, id).await?.and_then(|view| view.into_task(queue))
    }
}
