//! What clients do to tasks that are there: replace, edit, run, purge; and what they must be answered.

use duepost::{
    domain::{
        id::TaskId,
        task::{Edit, TaskState, When},
    },
    store::{Edited, Put, Revived},
};

use super::steps::{World, pick};
use crate::{
    store_kit::{at, payload, uid},
    support::ms,
};

impl World {
    fn is_full(&self) -> bool {
        let size: usize =
            [TaskState::Scheduled, TaskState::Active, TaskState::Dead].map(|s| self.last.count(s)).iter().sum();
        self.set_up.settings.max_size.is_some_and(|max| size as u64 >= max)
    }

    pub(super) async fn replace(&mut self) {
        let mut new = self.any_task();
        new.uid = uid();
        if self.rng.bool() && !self.held.is_empty() {
            new.id = Some(self.held[self.rng.usize(0..self.held.len())].id.clone());
        }
        let id = new.id.get_or_insert_with(|| TaskId::from_uid(new.uid)).clone();
        let only_create = self.rng.u8(0..6) == 0;
        let put = self.kit.store.put(&new, only_create).await.expect("Redis answers");
        let state = self.row(&id).map(|r| r.state);
        let expected = match state {
            Some(_) if only_create => "exists",
            Some(TaskState::Scheduled | TaskState::Active) => "replaced",
            Some(TaskState::Dead) => "created",
            _ if self.is_full() => "full",
            _ => "created",
        };
        let (word, task) = match put {
            Put::Created(task) => ("created", Some(task)),
            Put::Replaced(task) => ("replaced", Some(task)),
            Put::Exists => ("exists", None),
            Put::Full => ("full", None),
            Put::NoQueue => ("no queue", None),
        };
        assert_eq!(word, expected, "{id} over {state:?}");
        self.note(format!("put {id} {:?} {:?}: {word}", new.when, new.expires));
        self.count(format!("put {word}"));
        if let Some(task) = task {
            assert_eq!((task.uid, task.state, task.attempt()), (new.uid, TaskState::Scheduled, 0));
            self.accepted.insert(id, new);
            self.facts.replaced += i64::from(word == "replaced");
        }
        self.look("replace").await;
    }

    pub(super) async fn edit(&mut self) {
        let Some(id) = self.any_id() else { return };
        let mut edit =
            Edit { when: None, payload: None, retry: None, timeout: None, headers: None, expires: None, uid: uid() };
        if self.rng.bool() {
            let later = at(self.last.now + pick(&mut self.rng, &[-50, 300, 4000]));
            edit.when = Some(pick(&mut self.rng, &[When::After(ms(0)), When::After(ms(900)), later]));
        }
        match self.rng.u8(0..5) {
            0 => edit.payload = Some(payload("3")),
            1 => edit.timeout = Some(Some(ms(700))),
            2 => {
                edit.expires =
                    Some(pick(&mut self.rng, &[None, Some(When::After(ms(5000))), Some(When::After(ms(500)))]))
            }
            _ => edit.when = Some(edit.when.unwrap_or(When::After(ms(40)))),
        }
        let edited = self.kit.store.edit(&self.kit.queue, &id, &edit).await.expect("Redis answers");
        let row = self.row(&id).cloned();
        let (state, may_expire) = (row.as_ref().map(|r| r.state), row.as_ref().is_some_and(|r| r.expires.is_some()));
        let word = match &edited {
            Edited::Done(task) => {
                assert_eq!(task.uid == edit.uid, edit.is_new_content());
                "done"
            }
            Edited::Active(_) => "active",
            Edited::Finished(_) => "finished",
            Edited::ExpiresFirst => "expires first",
            Edited::Unknown => "unknown",
            Edited::NoQueue => "no queue",
        };
        let expected = match state {
            None => "unknown",
            Some(TaskState::Active) => "active",
            Some(TaskState::Scheduled) => "done",
            Some(_) => "finished",
        };
        let refused = word == "expires first" && expected == "done" && (may_expire || edit.expires.is_some());
        assert!(word == expected || refused, "{word}, not {expected}: {edit:?} of {row:?}");
        self.note(format!("edit {id} {edit:?}: {word}"));
        self.count(format!("edit {word}"));
        self.look("edit").await;
    }

    pub(super) async fn revive(&mut self) {
        let Some(mut id) = self.any_id() else { return };
        let ended = |s: TaskState| s.is_ended() && s != TaskState::Completed;
        if self.rng.bool()
            && let Some((there, _)) = self.last.rows.iter().find(|(_, r)| ended(r.state))
        {
            id = there.clone();
        }
        let revived = self.kit.store.run(&self.kit.queue, &id).await.expect("Redis answers");
        let row = self.row(&id).cloned();
        let word = match revived {
            Revived::Done(task) => {
                assert_eq!(task.state, TaskState::Scheduled);
                "done"
            }
            Revived::Active(_) => "active",
            Revived::Finished(_) => "finished",
            Revived::Full => "full",
            Revived::Unknown => "unknown",
            Revived::NoQueue => "no queue",
        };
        let expected = match row.as_ref().map(|r| r.state) {
            None => "unknown",
            Some(TaskState::Active) => "active",
            Some(TaskState::Completed) => "finished",
            Some(TaskState::Scheduled | TaskState::Dead) => "done",
            Some(_) if self.is_full() => "full",
            Some(_) => "done",
        };
        assert_eq!(word, expected, "run of {row:?}");
        self.note(format!("run {id}: {word}"));
        self.count(format!("run {word}"));
        if word == "done"
            && let Some(row) = row
        {
            self.facts.cancelled.remove(&row.uid);
        }
        self.look("revive").await;
    }

    pub(super) async fn purge(&mut self) {
        let states = TaskState::ALL.map(|s| if s == TaskState::Active { TaskState::Dead } else { s });
        let state = pick(&mut self.rng, &states);
        let purged = self.kit.store.purge(&self.kit.queue, state).await.expect("Redis answers");
        assert_eq!(purged, Some(self.last.count(state) as u64));
        self.note(format!("purge {state:?}"));
        self.count(format!("purge {state:?}"));
        let others = |s: &super::snapshot::Snapshot| s.rows.values().filter(|r| r.state != state).count();
        let before = others(&self.last);
        self.look("purge").await;
        assert_eq!((self.last.count(state), others(&self.last)), (0, before));
    }
}
