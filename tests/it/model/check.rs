//! What the model knows beside Redis: set-up, who said 2xx, what was cancelled; and what may follow from what.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use duepost::domain::{
    queue::{Pause, Settings},
    task::{TRANSITIONS, TaskState},
    time::UnixMs,
};

use super::snapshot::{CANCELLING, Row, Run, Snapshot};

/// The set-up as this process last made it, not as the gate's hash says.
#[derive(Debug, Clone)]
pub struct SetUp {
    pub settings: Settings,
    pub pause: Pause,
    /// Webhook → enabled.
    pub hooks: BTreeMap<&'static str, bool>,
    /// When the next claim conforms to the rate, in µs.
    pub tat_us: i64,
    /// A changed retention is looked at by then.
    pub looked_at: i64,
}

/// What is known of contents by their uid.
#[derive(Debug, Default)]
pub struct Facts {
    pub delivered: HashMap<[u8; 16], BTreeSet<String>>,
    pub acked: HashSet<[u8; 16]>,
    pub cancelled: HashSet<[u8; 16]>,
    /// How often a PUT stood in for a task that lived.
    pub replaced: i64,
}

impl SetUp {
    pub fn enabled(&self) -> Vec<&'static str> {
        self.hooks.iter().filter(|(_, on)| **on).map(|(w, _)| *w).collect()
    }

    pub fn paused_until(&self) -> Option<i64> {
        match self.pause {
            Pause::No => Some(0),
            Pause::Until(UnixMs(at)) => Some(at),
            Pause::Open => None,
        }
    }

    /// µs that an attempt costs, and how far a burst may run ahead.
    pub fn rate_us(&self) -> Option<(i64, i64)> {
        let rate = self.settings.rate.as_ref()?;
        let each = i64::try_from(rate.per.as_micros()).unwrap() / i64::from(rate.limit);
        Some((each, each * i64::from(rate.burst - 1)))
    }

    /// The first instant at which a pull, and a push, could take something.
    pub fn instants(&self, s: &Snapshot) -> [Option<i64>; 2] {
        let (Some(due), Some(paused)) = (s.head(TaskState::Scheduled), self.paused_until()) else { return [None; 2] };
        let mut at = due.max(paused);
        if self.settings.max_in_flight.is_some_and(|max| s.count(TaskState::Active) >= max as usize) {
            at = at.max(s.head(TaskState::Active).unwrap_or(i64::MAX));
        }
        if let Some((_, tolerance)) = self.rate_us() {
            let free = self.tat_us - tolerance;
            at = at.max(free.div_euclid(1000) + i64::from(free.rem_euclid(1000) > 0));
        }
        let held = |w: &&str| s.holds.get(*w).copied().unwrap_or(0);
        [Some(at), self.enabled().iter().map(held).min().map(|held| at.max(held))]
    }

    pub fn keeps(&self, state: TaskState) -> i64 {
        let kept = if state == TaskState::Dead { self.settings.retain_dead } else { self.settings.retain_completed };
        i64::try_from(kept.as_millis()).unwrap()
    }

    /// When the queue wants its next visit.
    pub fn agenda(&self, s: &Snapshot) -> Option<i64> {
        let mut wants = vec![self.instants(s)[1], s.head(TaskState::Active), s.expiry.values().min().copied()];
        for state in [TaskState::Completed, TaskState::Dead, TaskState::Cancelled, TaskState::Expired] {
            wants.push(s.head(state).map(|at| step(at + self.keeps(state)).max(self.looked_at)));
            if state != TaskState::Dead && s.count(state) as u64 > self.settings.retain_completed_max {
                wants.push(Some(step(s.now)));
            }
        }
        wants.into_iter().flatten().min()
    }
}

/// The next step of retention.
pub fn step(at: i64) -> i64 {
    (at.div_euclid(10_000) + 1) * 10_000
}

/// States that a script may lead to from one, in one call (a visit may end a lease and claim again).
fn reach(from: Option<TaskState>, script: &str, set_up: &SetUp) -> Vec<Option<TaskState>> {
    let mut reached = vec![from];
    let mut i = 0;
    while i < reached.len() {
        let at = reached[i];
        for (_, _, to) in TRANSITIONS.iter().filter(|(f, s, _)| *s == script && *f == at) {
            if !reached.contains(to) {
                reached.push(*to);
            }
        }
        if i > 0 && reached[i].is_some_and(|s| s.is_ended() && set_up.keeps(s) == 0) && !reached.contains(&None) {
            reached.push(None);
        }
        i += 1;
    }
    reached
}

/// Everything that a call may not do to tasks, whichever call.
pub fn assert_moves(script: &str, set_up: &SetUp, facts: &Facts, before: &Snapshot, after: &Snapshot) {
    let ids: BTreeSet<_> = before.rows.keys().chain(after.rows.keys()).collect();
    for id in ids {
        let (was, is) = (before.rows.get(id), after.rows.get(id));
        let state = |row: Option<&Row>| row.map(|r| r.state);
        assert!(
            reach(state(was), script, set_up).contains(&state(is)),
            "{script} led {id} from {:?} to {:?}",
            state(was),
            state(is)
        );
        if let (Some(was), Some(is)) = (was, is) {
            assert_stays(script, id.as_str(), was, is);
        }
        if let (Some(was), None) = (was, is) {
            assert!(script != "visit" || may_forget(was, set_up, before, after), "{id} was forgotten early: {was:?}");
        }
        let Some(is) = is else { continue };
        if is.state == TaskState::Completed && was.is_none_or(|w| w.state != TaskState::Completed) {
            let delivered = facts.delivered.get(&is.uid).is_some_and(|by| !by.is_empty());
            assert!(delivered || facts.acked.contains(&is.uid), "{id} is completed, and nobody said 2xx");
        }
        if facts.cancelled.contains(&is.uid) {
            assert!(is.state != TaskState::Scheduled, "{id} was cancelled and waits again");
        }
        if is.state == TaskState::Scheduled {
            let cancelling = is.run.as_ref().is_some_and(|r| r.marks & CANCELLING != 0);
            assert!(!cancelling, "{id} waits with the mark of a cancel");
        }
    }
}

fn assert_stays(script: &str, id: &str, was: &Row, is: &Row) {
    if was.uid != is.uid && script != "edit" {
        let free = matches!(was.state, TaskState::Cancelled | TaskState::Expired);
        assert!(script == "replace" || script == "enqueue" && free, "{script} replaced {id}: {was:?}");
        assert!(is.run.is_none(), "{id} begins with the run row of other content");
        return;
    }
    if script == "edit" {
        assert_edited(id, was, is);
        return;
    }
    assert_eq!(was.expires, is.expires);
    if was.state.is_ended() && was.state == is.state {
        assert_eq!(was.score, is.score, "{id} ended once");
    }
    let fence = |row: &Row| row.run.as_ref().map_or(0, |r| r.fence);
    match script {
        "visit" => assert!((fence(was)..=fence(was) + 1).contains(&fence(is)), "the fence of {id}"),
        _ => assert_eq!(fence(was), fence(is), "only a claim raises the fence of {id}"),
    }
    if let (Some(was), Some(is)) = (&was.run, &is.run) {
        assert!(was.done.iter().all(|w| is.done.contains(w)), "a success of {id} is forgotten");
        assert!(script == "revive" || was.reclaims <= is.reclaims && was.lapses <= is.lapses);
    }
}

fn assert_edited(id: &str, was: &Row, is: &Row) {
    assert_eq!(was.state, is.state);
    assert!(was.state == TaskState::Scheduled || was == is, "{id} was edited while {:?}", was.state);
    let (Some(before), Some(after)) = (&was.run, &is.run) else {
        // with one the task may be due at another instant than its record says, see `Snapshot::take`
        let fresh = is.run.as_ref().is_none_or(|run| *run == Run::fresh(is.uid));
        assert!(was.run.is_none() && fresh, "an edit of {id} makes at most a fresh run row: {is:?}");
        return;
    };
    assert_eq!((before.fence, before.reclaims, before.lapses), (after.fence, after.reclaims, after.lapses));
    let done = if was.uid == is.uid { before.done.clone() } else { Vec::new() };
    assert_eq!(after.done, done, "who has {id}");
}

/// Whether a visit may remove a task: kept long enough, too many of them, or nothing is kept of what ends right now.
fn may_forget(was: &Row, set_up: &SetUp, before: &Snapshot, after: &Snapshot) -> bool {
    let most = set_up.settings.retain_completed_max;
    if !was.state.is_ended() {
        return set_up.settings.retain_completed.is_zero() || most < 100;
    }
    let could_be = [was.state, TaskState::Scheduled, TaskState::Active].map(|s| before.count(s) as u64);
    let too_many = could_be.iter().sum::<u64>() > most && after.count(was.state) as u64 >= most;
    was.state != TaskState::Dead && too_many || was.score + set_up.keeps(was.state) <= after.now
}

/// Whoever slept until an instant must have been rung when it became earlier.
pub fn assert_woken(what: &str, before: [Option<i64>; 2], after: [Option<i64>; 2], now: i64, heard: &[String]) {
    for (i, kind) in ["pull", "push"].into_iter().enumerate() {
        let Some(at) = after[i] else { continue };
        if before[i].is_none_or(|slept| at < slept && now < slept) {
            let told = heard.iter().filter_map(|ring| ring.split(' ').nth(i + 1)?.parse::<f64>().ok());
            #[allow(clippy::cast_possible_truncation)]
            let told = told.map(|n| n as i64).min();
            assert!(
                told.is_some_and(|told| told <= at + 1),
                "{what}: a {kind} sleeps until {:?} and could take something at {at}; it was told {told:?}",
                before[i]
            );
        }
    }
}
