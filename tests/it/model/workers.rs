//! What workers and consumers do, honest and not, in time and too late; and what they must be answered.

use std::time::Duration;

use duepost::{
    domain::{
        id::TaskId,
        round::Verdict,
        task::{DeadReason, TaskState},
        time::UnixMs,
    },
    store::{ClaimKind, Lease, Renewal, Renewed, Settled, Settlement, Visit},
};
use futures_util::future::join_all;

use super::{
    snapshot::{CANCELLING, Snapshot},
    steps::{HOOKS, World, pick},
};
use crate::{
    store_raw::{b, words},
    support::ms,
};

/// A claim that somebody believes to hold.
#[derive(Debug, Clone)]
pub struct Held {
    pub id: TaskId,
    pub lease: Lease,
    pub kind: ClaimKind,
    pub wants: Vec<&'static str>,
}

impl World {
    pub(super) async fn visit(&mut self) {
        let kind = pick(&mut self.rng, &[ClaimKind::Push, ClaimKind::Push, ClaimKind::Push, ClaimKind::Pull]);
        let visit = Visit {
            tasks: pick(&mut self.rng, &[0, 1, 3, 20]),
            bytes: pick(&mut self.rng, &[1, 100, 1 << 20]),
            lease: ms(pick(&mut self.rng, &[200, 1000])),
            kind,
        };
        let nervous = self.rng.u8(0..4) == 0;
        let store = if nervous { &self.nervous } else { &self.kit.store };
        let until = if self.rng.u8(0..4) == 0 { self.kit.now().await + 900 } else { 0 };
        let visited = store.visit_briefly(&self.kit.queue, visit, UnixMs(until)).await.expect("Redis answers");
        let limited = self.set_up.settings.max_in_flight.is_some() || self.set_up.settings.rate.is_some();
        let brief = until > visited.now.0 && !limited;
        let now = visited.now.0;
        assert!(visited.damaged.is_empty());
        self.note(format!("visit {visit:?} nervous={nervous} brief={brief}: {} claims", visited.claims.len()));
        self.count(format!("visit {kind:?} {}", if visited.claims.is_empty() { "empty" } else { "claims" }));
        if !visited.claims.is_empty() {
            self.assert_allowed(kind, now, visited.claims.len());
            assert!(visited.claims.len() <= visit.tasks);
        }
        for claim in &visited.claims {
            let was = self.row(&claim.id).expect("what is claimed was there");
            assert!(claim.due.0 <= now, "{} is early", claim.id);
            let fence = was.run.as_ref().map_or(0, |r| r.fence);
            assert_eq!((claim.lease.fence, *claim.lease.uid.0.as_bytes()), (fence + 1, was.uid));
            assert!(!self.facts.cancelled.contains(&was.uid), "{} was cancelled and is claimed", claim.id);
            match was.state {
                TaskState::Scheduled => assert_eq!(claim.due.0, was.score),
                TaskState::Active => {
                    assert!(!nervous && !brief && was.score <= now, "{} is taken from its holder", claim.id)
                }
                _ => panic!("{} is claimed from {:?}", claim.id, was.state),
            }
            if fence == 0 && !brief {
                assert!(claim.expires_at.is_none_or(|at| at.0 > now), "{} has expired", claim.id);
            }
            let wants = self.set_up.enabled().into_iter().filter(|w| !claim.has.iter().any(|h| h == w)).collect();
            self.held.push(Held { id: claim.id.clone(), lease: claim.lease.clone(), kind, wants });
        }
        let ended = self.last.rows.values().any(|r| r.state == TaskState::Active && r.score <= now);
        if !brief {
            self.set_up.looked_at = 0;
        }
        self.grace = if brief {
            until
        } else if nervous && ended {
            now + 1001
        } else {
            0
        };
        self.look("visit").await;
        assert_eq!(visited.agenda.map(|at| at.0), self.last.agenda, "what it answers is what is there");
        assert_eq!([visited.pull, visited.push].map(|at| at.map(|at| at.0)), self.slept);
        let early = Snapshot { now, ..self.last.clone() };
        let exact = self.set_up.agenda(&early).map(|wants| wants.max(now));
        if brief {
            let own = visited.claims.first().map(|_| now + i64::try_from(visit.lease.as_millis()).unwrap());
            let wants = [visited.push.map(|push| push.0.max(now)), own, Some(until)].into_iter().flatten().min();
            assert_eq!(self.last.agenda, wants, "a brief visit goes by the tasks and by what it was told");
        } else if self.grace == 0 {
            assert_eq!(self.last.agenda, exact, "a visit sets the agenda exactly");
        }
        let active = self.last.count(TaskState::Active);
        let over = self.set_up.settings.max_in_flight.is_some_and(|max| active > max as usize);
        assert!(!over || visited.claims.is_empty(), "more are under way than may be");
    }

    fn assert_allowed(&mut self, kind: ClaimKind, now: i64, claims: usize) {
        assert!(self.set_up.paused_until().is_some_and(|until| until <= now), "a claim while paused");
        if kind == ClaimKind::Push {
            let free = |w: &&str| self.last.holds.get(*w).is_none_or(|until| *until <= now);
            assert!(self.set_up.enabled().iter().any(free), "a push with no webhook free: {:?}", self.last.holds);
        }
        if let Some((each, tolerance)) = self.set_up.rate_us() {
            let claims = i64::try_from(claims).unwrap();
            let tat = self.set_up.tat_us.max(now * 1000);
            assert!(tat + (claims - 1) * each <= now * 1000 + tolerance, "{claims} claims over the rate");
            self.set_up.tat_us = tat + claims * each;
        }
    }

    pub(super) async fn settle(&mut self) {
        let (mut jobs, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..pick(&mut self.rng, &[1, 1, 4]) {
            if self.held.is_empty() {
                break;
            }
            let held = self.held.swap_remove(self.rng.usize(0..self.held.len()));
            if self.rng.u8(0..100) < 12 {
                self.count("vanished".to_owned());
                if self.rng.bool() {
                    self.held.push(held); // it wakes up late
                }
                continue;
            }
            if seen.contains(&held.id) {
                self.held.push(held);
                continue;
            }
            seen.push(held.id.clone());
            jobs.push(if held.kind == ClaimKind::Push { self.judge(held) } else { self.consume(held) });
        }
        if jobs.is_empty() {
            return;
        }
        let answers = if self.rng.bool() && jobs.iter().all(|(h, ..)| h.kind == ClaimKind::Push) {
            let calls = jobs.iter().map(|(_, settlement, _)| self.kit.store.settle(settlement.clone()));
            join_all(calls).await.into_iter().map(|a| a.expect("Redis answers")).collect()
        } else {
            self.settle_raw(&jobs).await
        };
        for ((held, settlement, ack), settled) in jobs.iter().zip(&answers) {
            self.assert_settled(held, settlement, *ack, *settled);
        }
        self.look("settle").await;
        for (held, settlement, _) in &jobs {
            let row = self.row(&held.id).filter(|r| r.uid == *held.lease.uid.0.as_bytes());
            if let Some(run) = row.and_then(|r| r.run.as_ref()) {
                let living = self.row(&held.id).is_some_and(|r| !r.state.is_ended());
                let kept = settlement.won.iter().all(|w| run.done.contains(w));
                assert!(!living || kept, "a success of {} is forgotten", held.id);
            }
        }
        if self.rng.u8(0..6) == 0 {
            let (_, settlement, _) = jobs.swap_remove(0);
            if jobs.is_empty() {
                let settled = self.kit.settle(settlement).await;
                assert!(
                    !matches!(settled, Settled::Scheduled | Settled::Dead | Settled::Cancelled),
                    "{settled:?} twice"
                );
                self.look("settle").await;
            }
        }
    }

    /// What a worker reports of its round.
    fn judge(&mut self, held: Held) -> (Held, Settlement, bool) {
        let (won, left): (Vec<&str>, Vec<&str>) = held.wants.iter().partition(|_| self.rng.u8(0..10) < 7);
        let by = self.facts.delivered.entry(*held.lease.uid.0.as_bytes()).or_default();
        by.extend(won.iter().map(|w| (*w).to_owned()));
        let later = UnixMs(self.last.now + pick(&mut self.rng, &[0, 40, 800]));
        let verdict = if left.is_empty() && !won.is_empty() {
            Verdict::Done
        } else {
            let dead = Verdict::Dead(DeadReason::MaxAttempts);
            pick(
                &mut self.rng,
                &[Verdict::Retry(later), Verdict::Retry(later), Verdict::Release(later), dead, Verdict::Expired],
            )
        };
        let own = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect();
        let settlement = Settlement {
            lease: held.lease.clone(),
            verdict,
            about: own(&left),
            won: own(&won),
            failed: u32::try_from(left.len()).unwrap(),
            progress: None,
            notes: vec![],
        };
        (held, settlement, false)
    }

    /// What a consumer says: an ack, or no.
    fn consume(&mut self, held: Held) -> (Held, Settlement, bool) {
        let later = UnixMs(self.last.now + pick(&mut self.rng, &[0, 300]));
        let ack = self.rng.bool();
        let verdict = pick(&mut self.rng, &[Verdict::Retry(later), Verdict::Release(later)]);
        if ack {
            self.facts.acked.insert(*held.lease.uid.0.as_bytes());
        }
        let (lease, about, won) = (held.lease.clone(), Vec::new(), Vec::new());
        (held, Settlement { lease, verdict, about, won, failed: 0, progress: None, notes: vec![] }, ack)
    }

    /// All in one script, some with a hold.
    async fn settle_raw(&mut self, jobs: &[(Held, Settlement, bool)]) -> Vec<Settled> {
        let mut args = vec![b(0), b("")];
        if self.rng.u8(0..4) == 0 {
            let (hook, until) = (pick(&mut self.rng, &HOOKS), self.last.now + pick(&mut self.rng, &[50, 2000]));
            let rev: i64 = self.kit.on("HGET", "gate", &[b"rev"]).await;
            args.extend([b(1), b(hook), b(rev), b(until), b(""), b(0), b(0), b(0)]);
            self.note(format!("hold {hook} until {until}"));
        } else {
            args.push(b(0));
        }
        for (_, s, ack) in jobs {
            let (verb, at) = match s.verdict {
                _ if *ack => ("ack", 0),
                Verdict::Done => ("done", 0),
                Verdict::Ack => ("ack", 0),
                Verdict::Retry(at) => ("retry", at.0),
                Verdict::Release(at) => ("release", at.0),
                Verdict::Dead(_) => ("dead", 0),
                Verdict::Expired => ("expired", 0),
            };
            args.extend([s.lease.member.clone(), s.lease.uid.0.as_bytes().to_vec(), b(s.lease.fence), b(verb), b(at)]);
            args.extend([b(s.about.join(",")), b(s.won.join(",")), b(s.failed), b("")]);
        }
        let answers = words(&self.kit.eval("settle", 0, &args).await);
        let word = |w: &str| match w {
            "completed" => Settled::Completed,
            "scheduled" => Settled::Scheduled,
            "dead" => Settled::Dead,
            "expired" => Settled::Expired,
            "cancelled" => Settled::Cancelled,
            "lease_lost" => Settled::LeaseLost,
            "gone" => Settled::Gone,
            "late" => Settled::Late,
            "already" => Settled::Already,
            other => panic!("settle answers {other}"),
        };
        answers.iter().map(|w| word(w)).collect()
    }

    fn assert_settled(&mut self, held: &Held, s: &Settlement, ack: bool, settled: Settled) {
        let what = format!("{} {:?} ack={ack}: {settled:?}", held.id, s.verdict);
        self.note(format!("settle {what}"));
        let verb = if ack { "Ack".to_owned() } else { format!("{:?}", s.verdict) };
        self.count(format!("settle {} {settled:?}", verb.split('(').next().unwrap()));
        let row = self.row(&held.id).filter(|r| r.uid == *s.lease.uid.0.as_bytes());
        let run = row.and_then(|r| r.run.as_ref());
        let living = row.is_some_and(|r| !r.state.is_ended());
        let latest = run.is_some_and(|r| r.fence == s.lease.fence);
        let current = latest && row.is_some_and(|r| r.state == TaskState::Active);
        let marked = run.is_some_and(|r| r.marks & CANCELLING != 0);
        let has = |w: &String| s.won.contains(w) || run.is_some_and(|r| r.done.contains(w));
        let all = !s.about.is_empty() && s.about.iter().all(has);
        let expected = match (ack, s.verdict) {
            _ if run.is_none() => Settled::Gone,
            (false, Verdict::Done) if living => Settled::Completed,
            (true, _) if living && latest => Settled::Completed,
            (false, Verdict::Retry(_) | Verdict::Dead(_)) if current && all => Settled::Completed,
            _ if living && (ack || !current) => Settled::LeaseLost,
            _ if !living => {
                let done = row.is_some_and(|r| r.state == TaskState::Completed);
                let mine = latest || !ack && s.verdict == Verdict::Done;
                if done && mine { Settled::Already } else { Settled::Late }
            }
            _ if marked => Settled::Cancelled,
            (_, Verdict::Dead(_)) => Settled::Dead,
            (_, Verdict::Expired) => Settled::Expired,
            _ => Settled::Scheduled,
        };
        assert_eq!(settled, expected, "{what} of {row:?}");
    }

    pub(super) async fn renew(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held[self.rng.usize(0..self.held.len())].clone();
        let uid = *held.lease.uid.0.as_bytes();
        let won: Vec<String> = held.wants.iter().filter(|_| self.rng.u8(0..4) == 0).map(|w| (*w).to_owned()).collect();
        self.facts.delivered.entry(uid).or_default().extend(won.iter().cloned());
        let renewal = Renewal { lease: held.lease.clone(), won: won.clone() };
        let answer =
            self.kit.store.renew(&self.kit.queue, Duration::from_secs(1), &[renewal]).await.expect("answers")[0];
        let row = self.row(&held.id).filter(|r| r.uid == uid && r.state == TaskState::Active);
        let current = row.and_then(|r| r.run.as_ref()).filter(|r| r.fence == held.lease.fence);
        let expected = match current {
            None => Renewed::LeaseLost,
            Some(run) if run.marks & CANCELLING != 0 => Renewed::Cancelling,
            Some(_) => Renewed::Held,
        };
        assert_eq!(answer, expected);
        self.note(format!("renew {}: {answer:?}", held.id));
        self.count(format!("renew {answer:?}"));
        self.look("renew").await;
        if answer != Renewed::LeaseLost {
            let row = self.row(&held.id).expect("it is there");
            assert!(row.score >= self.last.now + 500);
            assert!(won.iter().all(|w| row.run.as_ref().is_some_and(|r| r.done.contains(w))));
        }
    }
}
