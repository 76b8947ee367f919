//! A consumer at the store, as the tests of pulling see it.

use std::time::Duration;

use duepost::{
    domain::{
        attempt::Outcome,
        id::{TaskId, Uid},
        pull::No,
        queue::Totals,
        retry::{Backoff, BackoffKind, Retry},
        task::{Task, TaskState},
        time::UnixMs,
    },
    store::{Pulled, Told, Want},
};

use crate::support::{inside::Inside, ms, secs};

pub const LEASE: Duration = secs(10);

pub fn want(max: usize) -> Want {
    Want { max, lease: LEASE, wait: Duration::ZERO }
}

impl Inside {
    pub async fn pull(&self, want: Want) -> Vec<Pulled> {
        let mut taken = self.store.pull(&self.queue, want).await.unwrap();
        let tasks = taken.tasks();
        taken.handed_over();
        tasks
    }

    pub async fn pull_one(&self) -> Pulled {
        let mut tasks = self.pull(want(1)).await;
        assert_eq!(tasks.len(), 1, "one task was due");
        tasks.remove(0)
    }

    pub async fn given_pulled(&self, id: &str) -> Pulled {
        self.given_due(id).await;
        self.advance(ms(2));
        self.pull_one().await
    }

    pub async fn ack(&self, pulled: &Pulled) -> Told {
        self.store.ack(&self.queue, &pulled.task.id, pulled.token).await.unwrap()
    }

    pub async fn nack(&self, pulled: &Pulled, no: No) -> Told {
        let error = Some("no luck".to_owned());
        self.store.nack(&self.queue, &pulled.task.id, pulled.token, no, error, 0.5).await.unwrap()
    }

    pub async fn extend(&self, pulled: &Pulled, lease: Duration) -> Told {
        self.store.extend(&self.queue, &pulled.task.id, pulled.token, lease).await.unwrap()
    }

    /// The lease runs out, and somebody takes note of it.
    pub async fn lapse(&self) {
        self.advance(LEASE + ms(1));
        self.claim(0).await;
    }

    pub async fn totals(&self) -> Totals {
        self.store.stats(&self.queue).await.unwrap().unwrap().totals
    }

    pub async fn retry(&self, max_attempts: u32) {
        let backoff = Backoff { kind: BackoffKind::Fixed { delay: secs(60) }, jitter: 0.5 };
        self.settings(|s| s.retry = Retry { max_attempts, backoff }).await;
    }
}

#[track_caller]
pub fn done(told: Told) -> Task {
    match told {
        Told::Done(task) => *task,
        other => panic!("not done: {other:?}"),
    }
}

#[track_caller]
pub fn lost(told: Told) -> TaskState {
    match told {
        Told::LeaseLost(state) => state,
        other => panic!("the lease is not lost: {other:?}"),
    }
}

pub fn outcomes(task: &Task) -> Vec<(u32, Outcome)> {
    assert!(task.progress.attempts.iter().all(|a| a.webhook.is_none()));
    task.progress.attempts.iter().map(|a| (a.number, a.outcome)).collect()
}

/// Without what differs between any two tasks.
pub fn alike(mut task: Task) -> Task {
    let first = task.progress.attempts.first_mut().unwrap();
    (first.started_at, first.lateness_ms, first.duration_ms) = (UnixMs(0), 0, 0);
    task.expires_at = task.expires_at.map(|at| UnixMs(at.0 - task.created_at.0));
    (task.created_at, task.run_at, task.score) = (UnixMs(0), UnixMs(0), UnixMs(0));
    (task.id, task.uid) = (TaskId::parse("x").unwrap(), Uid(uuid::Uuid::nil()));
    task
}
