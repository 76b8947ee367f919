//! What becomes of a pulled task: at the claim, and when its consumer says no. Pure, as [`round`](super::round) is for
//! webhooks.
//!
//! Tries by pull count for the whole task: a webhook of the same queue has as many fewer.

use std::time::Duration;

use super::{
    retry::Retry,
    round::{Claimed, Limits, Progress, Verdict},
    task::DeadReason,
    time::UnixMs,
};

/// Bytes of a consumer's error that are taken.
pub const ERROR_MAX: usize = 1024;
/// Tasks of one claim.
pub const MAX_TASKS: usize = 100;
/// How long a claim may hold.
pub const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(12 * 3600);
/// How long a claim holds if it does not say.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The longest that a claim waits for a task.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// How a consumer says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum No {
    /// An attempt failed: again by the policy, or after this long.
    Failed(Option<Duration>),
    /// Given back, no attempt counts; as it was, or after this long.
    GivenBack(Option<Duration>),
    /// Never again.
    Dead,
}

/// The end of a claimed task that is not handed out; `None` = hand it out.
#[must_use]
pub fn admit(task: &Claimed<'_>, limits: Limits, now: UnixMs) -> Option<Verdict> {
    if task.expires_at.is_some_and(|at| at <= now) {
        return Some(Verdict::Expired);
    }
    if task.reclaims >= limits.max_reclaims {
        return Some(Verdict::Dead(DeadReason::Lost));
    }
    let failed = task.progress.least_failed().saturating_add(task.lapses);
    (failed >= limits.max_attempts).then(|| Verdict::Dead(task.progress.reason.unwrap_or(DeadReason::MaxAttempts)))
}

/// What a refused task is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// Pull leases that ran out.
    pub lapses: u32,
    /// The score under which it was due.
    pub due: UnixMs,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
    /// What holds for the task.
    pub retry: &'a Retry,
    /// Even random number in [0, 1) for the jitter.
    pub dice: f64,
}

/// Turns a no into a verdict, and writes the try into `progress`.
#[must_use]
pub fn refuse(progress: &mut Progress, no: No, task: &Refused<'_>, now: UnixMs) -> Verdict {
    let verdict = match no {
        No::GivenBack(None) => Verdict::Release(task.due.min(now)),
        No::GivenBack(Some(delay)) => Verdict::Release(now.plus(delay)),
        No::Dead | No::Failed(_) => {
            progress.pulls.begun = progress.pulls.begun.saturating_add(1);
            progress.pulls.failed = progress.pulls.failed.saturating_add(1);
            let failed = progress.least_failed().saturating_add(task.lapses);
            match no {
                No::Dead => Verdict::Dead(DeadReason::Nack),
                _ if failed >= task.retry.max_attempts => Verdict::Dead(DeadReason::MaxAttempts),
                _ if task.expires_at.is_some_and(|at| at <= now) => Verdict::Expired,
                No::Failed(Some(delay)) => Verdict::Retry(now.plus(delay)),
                _ => {
                    let pause = task.retry.backoff.pause(failed, task.dice);
                    Verdict::Retry(now.plus(pause.max(Duration::from_millis(1))))
                }
            }
        }
    };
    match verdict {
        Verdict::Dead(reason) => progress.reason = Some(reason),
        Verdict::Retry(at) | Verdict::Release(at) => progress.due = Some(at),
        _ => {}
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        retry::{Backoff, BackoffKind},
        round::{self, Candidate, Plan, Pulls, Tries},
    };

    const NOW: UnixMs = UnixMs(1_000_000);
    const LIMITS: Limits = Limits { max_attempts: 3, max_reclaims: 10 };

    fn claimed(progress: &Progress) -> Claimed<'_> {
        Claimed { progress, reclaims: 0, lapses: 0, has: &[], due: NOW, expires_at: None }
    }

    fn retry() -> Retry {
        let delays = [1, 10, 100].map(Duration::from_secs).to_vec();
        Retry { max_attempts: 3, backoff: Backoff { kind: BackoffKind::Schedule { delays }, jitter: 0.5 } }
    }

    fn refused(retry: &Retry) -> Refused<'_> {
        Refused { lapses: 0, due: UnixMs(NOW.0 - 500), expires_at: None, retry, dice: 0.5 }
    }

    fn failed(hooks: &[(u32, bool)], pulled: u32) -> Progress {
        let tries = |(n, (failed, gave_up)): (usize, &(u32, bool))| {
            (n.to_string(), Tries { failed: *failed, begun: *failed, next: NOW, gave_up: *gave_up })
        };
        let pulls = Pulls { failed: pulled, begun: pulled };
        Progress { hooks: hooks.iter().enumerate().map(tries).collect(), pulls, ..Progress::default() }
    }

    #[test]
    fn a_claim_is_judged_before_it_is_handed_out() {
        let progress = Progress::default();
        let task = claimed(&progress);
        assert_eq!(admit(&task, LIMITS, NOW), None);
        let expires = |at| Claimed { expires_at: Some(UnixMs(at)), ..claimed(&progress) };
        assert_eq!(admit(&expires(NOW.0), LIMITS, NOW), Some(Verdict::Expired));
        assert_eq!(admit(&expires(NOW.0 + 1), LIMITS, NOW), None);
        let lost = |n| Claimed { reclaims: n, ..claimed(&progress) };
        assert_eq!(admit(&lost(9), LIMITS, NOW), None);
        assert_eq!(admit(&lost(10), LIMITS, NOW), Some(Verdict::Dead(DeadReason::Lost)));
        let dead = Some(Verdict::Dead(DeadReason::MaxAttempts));
        for (hooks, pulled, lapses, ends) in [
            (&[][..], 0, 3, dead),
            (&[][..], 1, 2, dead),
            (&[][..], 1, 1, None),
            (&[(1, false)][..], 1, 1, dead),
            (&[(2, false), (0, false)][..], 1, 1, None), // one webhook has two tries left: so has the task
            (&[(3, true), (1, false)][..], 1, 0, None),
        ] {
            let progress = failed(hooks, pulled);
            assert_eq!(
                admit(&Claimed { lapses, ..claimed(&progress) }, LIMITS, NOW),
                ends,
                "{hooks:?} {pulled} {lapses}"
            );
        }
    }

    #[test]
    fn a_webhook_has_as_many_tries_fewer_as_consumers_refused() {
        let hook = [Candidate { id: "0", held_until: None, slot: true }];
        let two = failed(&[(1, false)], 1);
        assert!(matches!(round::plan(&claimed(&two), &hook, LIMITS, NOW), Plan::Call { .. }));
        let three = failed(&[(1, false)], 2);
        let end = Plan::End(Verdict::Dead(DeadReason::MaxAttempts));
        assert_eq!(round::plan(&claimed(&three), &hook, LIMITS, NOW), end);
    }

    #[test]
    fn a_no_is_retried_by_the_policy_and_in_the_end_not() {
        let retry = retry();
        let mut progress = Progress::default();
        let dice = |dice| Refused { dice, ..refused(&retry) };
        assert_eq!(refuse(&mut progress, No::Failed(None), &dice(0.5), NOW), Verdict::Retry(UnixMs(NOW.0 + 1_000)));
        assert_eq!(refuse(&mut progress, No::Failed(None), &dice(0.0), NOW), Verdict::Retry(UnixMs(NOW.0 + 5_000)));
        assert_eq!(progress.due, Some(UnixMs(NOW.0 + 5_000)));
        let end = refuse(&mut progress, No::Failed(Some(Duration::ZERO)), &dice(0.0), NOW);
        assert_eq!(end, Verdict::Dead(DeadReason::MaxAttempts));
        assert_eq!((progress.pulls, progress.reason), (Pulls { failed: 3, begun: 3 }, Some(DeadReason::MaxAttempts)));
        let lapsed = Refused { lapses: 2, ..refused(&retry) };
        assert_eq!(refuse(&mut Progress::default(), No::Failed(None), &lapsed, NOW), end);
    }

    #[test]
    fn a_no_may_name_its_own_pause_or_the_end() {
        let retry = retry();
        let task = refused(&retry);
        let say = |no| {
            let mut progress = Progress::default();
            (refuse(&mut progress, no, &task, NOW), progress.pulls.failed)
        };
        assert_eq!(say(No::Failed(Some(Duration::from_secs(9)))), (Verdict::Retry(UnixMs(NOW.0 + 9_000)), 1));
        assert_eq!(say(No::Dead), (Verdict::Dead(DeadReason::Nack), 1));
        assert_eq!(say(No::GivenBack(None)), (Verdict::Release(task.due), 0));
        assert_eq!(say(No::GivenBack(Some(Duration::from_secs(2)))), (Verdict::Release(UnixMs(NOW.0 + 2_000)), 0));
        let forged = Refused { due: UnixMs(i64::MAX), ..task };
        assert_eq!(refuse(&mut Progress::default(), No::GivenBack(None), &forged, NOW), Verdict::Release(NOW));
        let late = Refused { expires_at: Some(NOW), ..task };
        assert_eq!(refuse(&mut Progress::default(), No::Failed(None), &late, NOW), Verdict::Expired);
    }
}
