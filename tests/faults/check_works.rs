//! The checker itself: a good history passes, and each planted fault is found and named.

use crate::{
    check::{CLAIM_FORGOTTEN, Evidence, FORGOTTEN, Findings, OLD_CLAIM, check},
    journal::{Claimed, Ended, Ends, Journal, Seen, Told, Window, payload},
};

const BACKOFF: i64 = 200;

/// A history that holds: pushed tasks, pulled ones, cancelled ones, a retry, and a duplicate with its cause.
struct History {
    journal: Journal,
    seen: Vec<Seen>,
    ends: Ends,
    windows: Vec<Window>,
    forgets: bool,
}

impl History {
    fn good() -> Self {
        let (journal, ends) = (Journal::default(), Ends::new());
        let mut it = Self { journal, seen: Vec::new(), ends, windows: Vec::new(), forgets: false };
        for n in 0..60 {
            let mut told = Told {
                n,
                queue: "q".to_owned(),
                id: format!("task-{n}"),
                uid: format!("uid-{n}"),
                run_at: 1_000 * n as i64,
                known: 1_000 * n as i64 - 50,
                payload: payload(n, 0),
                cancel: None,
            };
            let state = match n % 4 {
                0 | 1 => {
                    it.seen.push(seen(&told, 5, 200));
                    "completed"
                }
                2 => {
                    it.journal.claims.push(claim(&told, 5));
                    "completed"
                }
                _ => {
                    told.cancel = Some((200, told.run_at - 10));
                    "cancelled"
                }
            };
            it.journal.told.push(told);
            it.ends.insert(format!("task-{n}"), ended(state));
        }
        // A retry, after its pause.
        let told = &it.journal.told[4];
        it.seen.iter_mut().find(|s| s.n == 4).unwrap().status = 500;
        it.seen.push(seen(told, 5 + BACKOFF, 200));
        // A duplicate whose worker was killed, on record.
        it.seen.push(seen(&it.journal.told[8], 9_000, 200));
        it.ends.get_mut("task-8").unwrap().lost = 1;
        it.windows.push(Window { cause: "killed", on_record: true, from: 7_900, to: 8_100 });
        it
    }

    fn check(&self) -> Findings {
        check(&Evidence {
            journal: &self.journal,
            seen: &self.seen,
            ends: &self.ends,
            windows: &self.windows,
            backoff_ms: BACKOFF,
            tolerance_ms: 0,
            all_kept: true,
            forgets: self.forgets,
        })
    }
}

fn seen(told: &Told, late: i64, status: u16) -> Seen {
    let (id, uid) = (told.id.clone(), told.uid.clone());
    Seen { at: told.run_at + late, n: told.n, id, uid, status, odd_body: None }
}

fn claim(told: &Told, late: i64) -> Claimed {
    let at = told.run_at + late;
    let (id, uid) = (told.id.clone(), told.uid.clone());
    Claimed { id, uid, asked: at - 1, at, lease_ends: at + 3_000, acked: Some(at + 2), nacked: None }
}

fn ended(state: &str) -> Ended {
    Ended { state: state.to_owned(), reason: None, lost: 0 }
}

/// Plants a fault into the good history; all that is found must be the one list that the pick gives, with one entry.
#[track_caller]
fn planted(plant: impl FnOnce(&mut History), pick: impl Fn(&mut Findings) -> &mut Vec<String>) {
    let mut it = History::good();
    plant(&mut it);
    let mut found = it.check();
    let named = std::mem::take(pick(&mut found));
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!(found.faults(), "", "beside {named:?}");
}

#[test]
fn a_good_history_passes() {
    let found = History::good().check();

    assert_eq!(found.faults(), "");
    assert_eq!((found.tasks, found.posts, found.claims, found.cancelled), (60, 32, 15, 15));
    assert_eq!(found.doubled(), 1, "{:?}", found.doubles);
}

#[test]
fn a_loss_is_found() {
    // Acknowledged and gone without a trace; shown as completed although nobody said 2xx; never delivered.
    planted(|it| drop(it.ends.remove("task-3")), |f| &mut f.lost);
    planted(|it| it.seen.retain(|s| s.n != 12), |f| &mut f.lost);
    planted(|it| it.seen.iter_mut().filter(|s| s.n == 12).for_each(|s| s.status = 500), |f| &mut f.lost);
    planted(|it| it.ends.get_mut("task-16").unwrap().state = "scheduled".to_owned(), |f| &mut f.lost);
    planted(
        |it| it.journal.claims.iter_mut().filter(|c| c.id == "task-2").for_each(|c| c.acked = None),
        |f| &mut f.lost,
    );
    // Cancelled although nobody asked; delivered although the cancel was acknowledged.
    planted(|it| it.ends.get_mut("task-16").unwrap().state = "cancelled".to_owned(), |f| &mut f.lost);
    planted(|it| it.ends.get_mut("task-3").unwrap().state = "completed".to_owned(), |f| &mut f.lost);
}

#[test]
fn an_early_attempt_is_found() {
    let early = |s: &mut Seen| s.at -= 6;
    planted(|it| it.seen.iter_mut().filter(|s| s.n == 12).for_each(early), |f| &mut f.early);
    let early = |c: &mut Claimed| c.at -= 6;
    planted(|it| it.journal.claims.iter_mut().filter(|c| c.id == "task-6").for_each(early), |f| &mut f.early);
}

#[test]
fn an_early_attempt_is_found_unless_redis_may_forget_and_it_was_not_acknowledged_yet() {
    let early = |it: &mut History, by: i64, far: i64| {
        let attempt = it.seen.iter_mut().find(|s| s.n == 12).unwrap();
        attempt.at -= by;
        let (from, to) = (attempt.at + far - 50, attempt.at + far + 50);
        it.windows.push(Window { cause: "failover", on_record: false, from, to });
    };
    planted(|it| early(it, 100, 0), |f| &mut f.early);
    planted(|it| (it.forgets, _) = (true, early(it, 100, 500)), |f| &mut f.early);
    planted(|it| (it.forgets, _) = (true, early(it, 40, 0)), |f| &mut f.early); // its POST was answered 50 ms before
    let mut it = History::good();
    early(&mut it, 100, 0);
    it.forgets = true;
    assert_eq!((it.check().faults().as_str(), it.check().doubles.get(FORGOTTEN)), ("", Some(&1)));
}

#[test]
fn a_duplicate_without_a_cause_is_found() {
    let again = |it: &mut History, n: usize, late| it.seen.push(seen(&it.journal.told[n], late, 200));
    planted(|it| again(it, 12, 300), |f| &mut f.unexplained);
    // A fault at another time explains nothing, nor does a killed worker whose loss is on no record.
    planted(|it| it.windows[0].from = 8_050, |f| &mut f.unexplained);
    planted(|it| it.ends.get_mut("task-8").unwrap().lost = 0, |f| &mut f.unexplained);
    // A retry before its pause is over.
    planted(
        |it| it.seen.iter_mut().filter(|s| s.n == 4 && s.status == 200).for_each(|s| s.at -= 1),
        |f| &mut f.unexplained,
    );
    // A claim after an ack, and one within the lease of another.
    planted(|it| it.journal.claims.push(claim(&it.journal.told[2], 4_000)), |f| &mut f.unexplained);
    planted(
        |it| {
            it.windows.clear();
            it.seen.retain(|s| s.n != 8 || s.at < 9_000);
            it.journal.claims.push(claim(&it.journal.told[2], 100));
            it.journal.claims.iter_mut().find(|c| c.id == "task-2").unwrap().acked = None;
        },
        |f| &mut f.unexplained,
    );
}

#[test]
fn a_second_claim_is_found_unless_redis_may_forget_the_first_one() {
    for acked in [true, false] {
        let again = |it: &mut History, window: (i64, i64)| {
            let second = claim(&it.journal.told[2], 100);
            if !acked {
                it.journal.claims.iter_mut().find(|c| c.id == "task-2").unwrap().acked = None;
            }
            let (from, to) = (second.at + window.0, second.at + window.1);
            it.windows.push(Window { cause: "failover", on_record: false, from, to });
            it.journal.claims.push(second);
        };
        planted(|it| again(it, (-500, 500)), |f| &mut f.unexplained);
        planted(|it| (it.forgets, _) = (true, again(it, (500, 900))), |f| &mut f.unexplained);
        let mut it = History::good();
        again(&mut it, (-500, 500));
        it.forgets = true;
        assert_eq!((it.check().faults().as_str(), it.check().doubles.get(CLAIM_FORGOTTEN)), ("", Some(&1)));
    }
}

#[test]
fn an_attempt_after_a_cancel_is_found_unless_redis_may_forget_its_claim() {
    let late = |it: &mut History, window: (i64, i64)| {
        let attempt = seen(&it.journal.told[3], 5, 500);
        let (from, to) = (attempt.at + window.0, attempt.at + window.1);
        it.windows.push(Window { cause: "failover", on_record: false, from, to });
        it.seen.push(attempt);
    };
    planted(|it| late(it, (-500, 500)), |f| &mut f.after_cancel);
    planted(|it| (it.forgets, _) = (true, late(it, (500, 900))), |f| &mut f.after_cancel);
    let mut it = History::good();
    late(&mut it, (-500, 500));
    it.forgets = true;
    assert_eq!((it.check().faults().as_str(), it.check().doubles.get(OLD_CLAIM)), ("", Some(&1)));
}

#[test]
fn what_is_not_the_task_s_own_is_found() {
    let first = |it: &mut History, change: fn(&mut Seen)| change(&mut it.seen[0]);
    planted(|it| first(it, |s| s.odd_body = Some("{}".to_owned())), |f| &mut f.strange);
    planted(|it| first(it, |s| s.n = 59), |f| &mut f.strange);
    // A POST of a task that nobody scheduled; but a POST without an id that went unanswered may have made one.
    let stranger = |it: &mut History| {
        let mut s = seen(&it.journal.told[0], 5, 200);
        s.id = "stranger".to_owned();
        it.seen.push(s);
    };
    planted(stranger, |f| &mut f.strange);
    let mut it = History::good();
    stranger(&mut it);
    it.journal.unanswered.insert(0);
    assert_eq!(it.check().faults(), "");
}

#[test]
fn another_life_of_a_task_is_found_unless_redis_may_forget_and_its_post_went_unanswered() {
    let before = |it: &mut History| {
        let mut first = seen(&it.journal.told[12], -400, 200);
        first.uid = "life before".to_owned();
        it.seen.push(first);
    };
    planted(before, |f| &mut f.strange);
    planted(|it| (it.forgets, _) = (true, before(it)), |f| &mut f.strange);
    planted(|it| (_, _) = (it.journal.unanswered.insert(12), before(it)), |f| &mut f.strange);
    let mut it = History::good();
    before(&mut it);
    it.forgets = true;
    it.journal.unanswered.insert(12);
    assert_eq!((it.check().faults().as_str(), it.check().doubles.get(FORGOTTEN)), ("", Some(&1)));
    // It does not count as the delivery of the task.
    it.seen.retain(|s| s.n != 12 || s.uid == "life before");
    assert_eq!(it.check().lost.len(), 1);
}

#[test]
fn a_death_is_found() {
    let mut it = History::good();
    it.ends.insert("task-12".to_owned(), Ended { reason: Some("lost".to_owned()), ..ended("dead") });

    let found = it.check();

    assert_eq!(found.dead.get("lost"), Some(&1));
    assert!(found.faults().contains("dead"));
}
