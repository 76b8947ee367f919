//! A history: one step after the other, and a look at everything after each.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use duepost::{
    domain::{
        id::TaskId,
        queue::{Pause, Settings},
        round::Verdict,
        task::{NewTask, TaskState},
    },
    store::{Change, ClaimKind, HookChange, Promise, Seal, Settled, Settlement, Store, StoreConfig, Visit},
    telemetry::Metrics,
};

use super::{
    check::{Facts, SetUp, assert_moves, assert_woken, step},
    snapshot::{Row, Snapshot},
    workers::Held,
};
use crate::{
    store_kit::{Kit, hook},
    store_raw::Ear,
    support::{ms, secs},
};

pub const HOOKS: [&str; 3] = ["h0", "h1", "h2"];

pub struct World {
    pub(super) kit: Kit,
    /// A process that has no undisturbed time behind it.
    pub(super) nervous: Store,
    pub(super) rng: fastrand::Rng,
    pub(super) ear: Ear,
    pub(super) set_up: SetUp,
    pub(super) facts: Facts,
    pub(super) accepted: BTreeMap<TaskId, NewTask>,
    pub(super) held: Vec<Held>,
    pub(super) last: Snapshot,
    pub(super) slept: [Option<i64>; 2],
    /// Until then the agenda may be late for a lease, because the nervous one visited, or somebody visited briefly.
    pub(super) grace: i64,
    pub(super) journal: VecDeque<String>,
    pub(super) counts: BTreeMap<String, usize>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the last steps: {:#?}", self.journal);
        }
    }
}

impl World {
    pub async fn start(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut settings = Settings::default();
        if rng.bool() {
            settings.retain_completed = pick(&mut rng, &[secs(0), secs(15), secs(3600)]);
            settings.retain_dead = pick(&mut rng, &[secs(0), secs(30), secs(3600)]);
            settings.retain_completed_max = pick(&mut rng, &[3, 10_000]);
        }
        let kit = Kit::start_with(settings.clone()).await;
        let config = StoreConfig {
            servers: kit.redis.url().into(),
            prefix: "dp".to_owned(),
            auto_create: false,
            lease_grace: secs(36_000),
            promise: Promise::default(),
            seal: Seal::default(),
        };
        let nervous = Store::new(config, Arc::clone(&kit.clock), Arc::new(Metrics::new(10))).expect("a valid URL");
        kit.open("h0").await;
        kit.open("h1").await;
        let (ear, last) = (kit.ear().await, Snapshot::take(&kit).await);
        let hooks = BTreeMap::from([("h0", true), ("h1", true)]);
        let set_up = SetUp { settings, pause: Pause::No, hooks, tat_us: 0, looked_at: 0 };
        Self {
            kit,
            nervous,
            rng,
            ear,
            set_up,
            facts: Facts::default(),
            accepted: BTreeMap::new(),
            held: Vec::new(),
            last,
            slept: [None; 2],
            grace: 0,
            journal: VecDeque::new(),
            counts: BTreeMap::new(),
        }
    }

    pub fn counts(&self) -> BTreeMap<String, usize> {
        self.counts.clone()
    }

    pub async fn step(&mut self) {
        if self.rng.u8(0..8) == 0 {
            return self.edits().await;
        }
        match self.rng.u32(0..100) {
            0..20 => self.enqueue().await,
            20..46 => self.visit().await,
            46..74 => self.settle().await,
            74..82 => self.cancel().await,
            82..88 => self.change().await,
            88..93 => self.renew().await,
            _ => {
                let by = pick(&mut self.rng, &[1, 20, 150, 1500, 11_000]);
                self.note(format!("advance {by}"));
                self.kit.advance(by);
            }
        }
    }

    async fn edits(&mut self) {
        match self.rng.u8(0..16) {
            0..5 => self.replace().await,
            5..10 => self.edit().await,
            10..15 => self.revive().await,
            _ => self.purge().await,
        }
    }

    pub(super) fn note(&mut self, what: String) {
        self.journal.push_back(what);
        if self.journal.len() > 30 {
            self.journal.pop_front();
        }
    }

    pub(super) fn count(&mut self, what: String) {
        *self.counts.entry(what).or_insert(0) += 1;
    }

    /// Looks at everything after a call.
    pub(super) async fn look(&mut self, script: &str) {
        let after = Snapshot::take(&self.kit).await;
        let heard = self.ear.heard(&self.kit).await;
        let what = format!("{script}, heard {heard:?}");
        self.note(what.clone());
        after.assert_books(self.facts.replaced);
        assert_moves(script, &self.set_up, &self.facts, &self.last, &after);
        let sleeps = self.set_up.instants(&after);
        assert_woken(&what, self.slept, sleeps, after.now, &heard);
        if let Some(wants) = self.set_up.agenda(&after) {
            let latest = wants.max(after.now + 1).max(self.grace);
            assert!(
                after.agenda.is_some_and(|at| at <= latest),
                "{what}: the agenda says {:?}, the truth is {wants}, it is {}",
                after.agenda,
                after.now
            );
        }
        (self.last, self.slept) = (after, sleeps);
    }

    pub(super) fn row(&self, id: &TaskId) -> Option<&Row> {
        self.last.rows.get(id)
    }

    /// What `fsck` would say.
    pub async fn audit(&mut self) {
        let audit = self.kit.store.audit(false).await.expect("Redis answers");
        assert_eq!(audit.findings, []);
        assert_eq!((audit.queues, audit.tasks), (1, self.last.rows.len()));
    }

    /// Without faults and limits all that is left ends.
    pub async fn drain(&mut self) {
        self.note("drain".to_owned());
        self.set_up.hooks = BTreeMap::from([("h0", true)]);
        self.set_up.pause = Pause::No;
        self.set_up.settings = Settings::default();
        let mut hooks: Vec<HookChange> = HOOKS.iter().map(|w| HookChange::Remove(hook(w, true).id)).collect();
        hooks.push(HookChange::Set(Box::new(hook("h0", true))));
        let settings = Some(Settings::default());
        self.kit.change(Change { settings, pause: Some(Pause::No), hooks }).await;
        self.set_up.looked_at = step(self.kit.now().await);
        self.look("gate").await;
        for _ in 0..100 {
            self.kit.advance(1500);
            let visit = Visit { tasks: 100, bytes: 1 << 20, lease: ms(1000), kind: ClaimKind::Push };
            let claims = self.kit.store.visit(&self.kit.queue, visit).await.expect("Redis answers").claims;
            (self.grace, self.set_up.looked_at) = (0, 0);
            self.look("visit").await;
            for claim in &claims {
                self.facts.delivered.entry(*claim.lease.uid.0.as_bytes()).or_default().insert("h0".to_owned());
                let (lease, won) = (claim.lease.clone(), vec!["h0".to_owned()]);
                let done = Settlement {
                    lease,
                    verdict: Verdict::Done,
                    about: vec![],
                    won,
                    failed: 0,
                    progress: None,
                    notes: vec![],
                };
                assert_eq!(self.kit.settle(done).await, Settled::Completed);
            }
            self.look("settle").await;
            if self.last.count(TaskState::Scheduled) + self.last.count(TaskState::Active) == 0 {
                return;
            }
        }
        panic!("not drained: {:?}", self.last.rows);
    }
}

pub fn pick<T: Clone>(rng: &mut fastrand::Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())].clone()
}
