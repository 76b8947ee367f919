//! What clients do: enqueue, cancel, change the set-up; and what they must be answered.

use duepost::{
    domain::{
        id::TaskId,
        queue::{Pause, Rate},
        task::{NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, Change, Enqueued, HookChange},
};
use futures_util::future::join_all;

use super::{
    check::step,
    snapshot::CANCELLING,
    steps::{HOOKS, World, pick},
};
use crate::{
    store_kit::{anonymous, at, hook, payload, task},
    support::{ms, secs},
};

impl World {
    pub(super) async fn enqueue(&mut self) {
        let mut tasks: Vec<NewTask> = Vec::new();
        for _ in 0..pick(&mut self.rng, &[1, 1, 3, 8]) {
            let task = self.any_task();
            if tasks.iter().all(|t| id_of(t) != id_of(&task)) {
                tasks.push(task);
            }
        }
        let answers = join_all(tasks.iter().map(|t| self.kit.store.enqueue(t.clone()))).await;
        let mut size =
            [TaskState::Scheduled, TaskState::Active, TaskState::Dead].map(|s| self.last.count(s)).iter().sum();
        for (task, answer) in tasks.into_iter().zip(answers) {
            let answer = answer.expect("Redis answers");
            let id = id_of(&task);
            let expected = self.expected(&id, &task, &mut size);
            let (word, there) = match answer {
                Enqueued::Created(t) => ("created", Some(t)),
                Enqueued::Replayed(t) => ("replayed", Some(t)),
                Enqueued::Exists(t) => ("exists", Some(t)),
                Enqueued::Active(t) => ("active", Some(t)),
                Enqueued::Full => ("full", None),
                Enqueued::NoQueue => ("no queue", None),
            };
            assert_eq!(word, expected, "{task:?} over {:?}", self.row(&id));
            self.count(format!("enqueue {word}"));
            self.note(format!("enqueue {id} {:?} {:?}: {word}", task.when, task.expires));
            if word == "created" {
                let there = there.expect("a task");
                assert_eq!(there.uid, task.uid);
                let again = self.row(&id).is_some_and(|r| r.uid == *task.uid.0.as_bytes()); // may have been moved
                if let (When::After(delay), false) = (task.when, again) {
                    assert_eq!(there.run_at, there.created_at.plus(delay), "a delay is exact");
                }
                self.accepted.insert(id, task);
            }
        }
        self.look("enqueue").await;
    }

    pub(super) fn any_task(&mut self) -> NewTask {
        if self.rng.u8(0..10) == 0
            && let Some(task) = self.accepted.values().nth(self.rng.usize(0..self.accepted.len().max(1)))
        {
            let id = id_of(task);
            if self.row(&id).is_some_and(|r| r.uid == *task.uid.0.as_bytes()) {
                return task.clone(); // the service's own retry
            }
        }
        let now = self.last.now;
        let mut new = if self.rng.u8(0..4) == 0 { anonymous() } else { task(&format!("t{}", self.rng.u8(0..30))) };
        let over_marked = self.rng.u8(0..3) == 0;
        let marked = |id: &TaskId| self.row(id).and_then(|r| r.run.as_ref()).is_some_and(|r| r.marks & CANCELLING != 0);
        if over_marked && let Some(id) = self.accepted.keys().find(|id| marked(id)) {
            new.id = Some(id.clone());
        }
        new.when = match self.rng.u8(0..6) {
            0..3 => When::After(ms(0)),
            3..5 => When::After(ms(pick(&mut self.rng, &[30, 400, 5000]))),
            _ => at(now + pick(&mut self.rng, &[-100_000, 0, 700])),
        };
        if self.rng.u8(0..6) == 0 {
            new.expires = Some(When::After(ms(pick(&mut self.rng, &[6000, 20_000]))));
        }
        new.payload = payload(pick(&mut self.rng, &["1", "1", "\"two\""]));
        new
    }

    fn expected(&self, id: &TaskId, task: &NewTask, size: &mut usize) -> &'static str {
        let uid = *task.uid.0.as_bytes();
        let row = self.row(id);
        let free = row.is_none_or(|r| matches!(r.state, TaskState::Cancelled | TaskState::Expired) && r.uid != uid);
        match row {
            Some(row) if !free => {
                let cancelling = row.run.as_ref().is_some_and(|r| r.marks & CANCELLING != 0);
                let there = &self.accepted[id];
                let same = (there.when, there.expires, &there.payload) == (task.when, task.expires, &task.payload);
                if row.uid == uid {
                    "created"
                } else if row.state == TaskState::Active && cancelling {
                    "active"
                } else if same && row.state != TaskState::Dead {
                    "replayed"
                } else {
                    "exists"
                }
            }
            _ if self.set_up.settings.max_size.is_some_and(|max| *size as u64 >= max) => "full",
            _ => {
                *size += 1;
                "created"
            }
        }
    }

    pub(super) async fn cancel(&mut self) {
        let mut id = self.any_id();
        if self.rng.bool() && !self.held.is_empty() {
            id = Some(self.held[self.rng.usize(0..self.held.len())].id.clone());
        }
        let Some(id) = id else { return };
        let row = self.row(&id).cloned();
        let answer = self.kit.cancel(&id).await;
        self.note(format!("cancel {id}"));
        let word = match &answer {
            Cancel::Done(t) => (t.state == TaskState::Cancelled).then_some("done"),
            Cancel::Already(t) => t.state.is_ended().then_some("already"),
            Cancel::UnderWay(t) => t.cancelling.then_some("under way"),
            Cancel::Finished(state) => (*state == TaskState::Completed).then_some("finished"),
            Cancel::Unknown => Some("unknown"),
            Cancel::NoQueue | Cancel::Unseen(..) => None,
        };
        let word = word.unwrap_or_else(|| panic!("{answer:?}"));
        let expected = match row.as_ref().map(|r| r.state) {
            None => "unknown",
            Some(TaskState::Scheduled | TaskState::Dead) => "done",
            Some(TaskState::Active) => "under way",
            Some(TaskState::Completed) => "finished",
            Some(TaskState::Cancelled | TaskState::Expired) => "already",
        };
        assert_eq!(word, expected);
        self.count(format!("cancel {word}"));
        if let Some(row) = row
            && ["done", "under way"].contains(&word)
        {
            self.facts.cancelled.insert(row.uid);
        }
        self.look("cancel").await;
    }

    pub(super) fn any_id(&mut self) -> Option<TaskId> {
        let n = self.accepted.len();
        (n > 0).then(|| self.accepted.keys().nth(self.rng.usize(0..n)).cloned()).flatten()
    }

    pub(super) async fn change(&mut self) {
        let mut change = Change::default();
        match self.rng.u8(0..10) {
            0..5 => {
                let name = pick(&mut self.rng, &HOOKS);
                let id = hook(name, true).id;
                match self.rng.u8(0..5) {
                    0..3 => {
                        change.hooks.push(HookChange::Set(Box::new(hook(name, true))));
                        self.set_up.hooks.insert(name, true);
                    }
                    3 => {
                        change.hooks.push(HookChange::Set(Box::new(hook(name, false))));
                        self.set_up.hooks.insert(name, false);
                    }
                    _ => {
                        change.hooks.push(HookChange::Remove(id.clone()));
                        self.set_up.hooks.remove(name);
                    }
                }
                change.hooks.push(HookChange::Free(id));
            }
            5..7 => {
                let until = Pause::Until(UnixMs(self.last.now + 300));
                self.set_up.pause = pick(&mut self.rng, &[Pause::No, Pause::No, until, Pause::Open]);
                change.pause = Some(self.set_up.pause);
            }
            _ => {
                let settings = &mut self.set_up.settings;
                match self.rng.u8(0..4) {
                    0 => settings.max_in_flight = pick(&mut self.rng, &[None, Some(2), Some(5)]),
                    1 => {
                        let rate = Rate { limit: 50, per: secs(1), burst: 4 };
                        settings.rate = pick(&mut self.rng, &[None, Some(rate)]);
                    }
                    2 => settings.max_size = pick(&mut self.rng, &[None, Some(10)]),
                    _ => settings.retain_completed = pick(&mut self.rng, &[settings.retain_completed, secs(40)]),
                }
                change.settings = Some(settings.clone());
            }
        }
        self.note(format!("change {change:?}"));
        self.kit.change(change).await;
        self.set_up.looked_at = step(self.kit.now().await);
        self.count("change".to_owned());
        self.look("gate").await;
    }
}

/// The client's id, or the one that the service makes.
fn id_of(task: &NewTask) -> TaskId {
    task.id.clone().unwrap_or_else(|| TaskId::from_uid(task.uid))
}
