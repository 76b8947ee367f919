//! What calls tell of their webhooks: holds, breakers and health. Notes travel with settlements, merged over a batch, so
//! that they cost no call of their own.

use std::collections::{BTreeMap, HashMap};

use super::{reply::parse_number, script::Call};
use crate::domain::{time::UnixMs, webhook::HookHealth};

/// Before the name of a webhook in `holds`: its breaker is open.
const BREAKER: char = '!';

/// What one or more calls told of a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// Which webhook.
    pub webhook: String,
    /// The rev that the calls went by. Once the set-up has changed since, the note is without effect: a PATCH clears
    /// what was known before.
    pub rev: u64,
    /// Nobody is to call it before this instant.
    pub held_until: Option<UnixMs>,
    /// The holds so far of its breaker, if that opened, held on, or (0) closed.
    pub breaker: Option<u32>,
    /// The last 2xx.
    pub success: Option<UnixMs>,
    /// The last failure.
    pub failure: Option<Stamp>,
    /// Failures since that success, or in all.
    pub failures: u64,
}

impl Note {
    /// Whether it tells nothing, and need not go anywhere.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let told =
            self.held_until.is_some() || self.breaker.is_some() || self.success.is_some() || self.failure.is_some();
        !told
    }

    fn add(&mut self, later: &Self) {
        self.held_until = self.held_until.max(later.held_until);
        self.breaker = later.breaker.or(self.breaker);
        let is_fresh = later.success > self.success; // by instants: a batch has no order
        match (is_fresh, later.success) {
            (true, Some(at)) if self.failure.is_none_or(|failed| failed.at() <= at) => self.failures = later.failures,
            _ => self.failures = self.failures.saturating_add(later.failures),
        }
        self.success = self.success.max(later.success);
        self.failure = self.failure.max(later.failure);
    }

    pub(super) fn put_into(&self, call: &mut Call<'_>) {
        let ms = |at: Option<UnixMs>| at.map_or(0, |at| at.0);
        call.arg(&self.webhook).arg(self.rev).arg(ms(self.held_until));
        call.arg(self.breaker.map(|n| n.to_string()).unwrap_or_default());
        call.arg(ms(self.success)).arg(self.failure.unwrap_or_default().to_string()).arg(self.failures);
    }
}

/// The instant of a failure in microseconds, so that those of one millisecond differ: a note may come twice, and the script
/// adds none that is not later than the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(i64);

impl Stamp {
    /// Of a failure at this instant, and later than the one before.
    #[must_use]
    pub fn of(at: UnixMs, before: Self) -> Self {
        Self(at.0.saturating_mul(1000).max(before.0.saturating_add(1)))
    }

    fn at(self) -> UnixMs {
        UnixMs(self.0 / 1000)
    }
}

impl std::fmt::Display for Stamp {
    /// Milliseconds, with three decimals.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// One note for each webhook and rev.
pub(super) fn merge<'a>(notes: impl Iterator<Item = &'a Note>) -> Vec<Note> {
    let mut merged: BTreeMap<(&str, u64), Note> = BTreeMap::new();
    for note in notes {
        let fresh = || Note { webhook: note.webhook.clone(), rev: note.rev, ..Note::default() };
        merged.entry((&note.webhook, note.rev)).or_insert_with(fresh).add(note);
    }
    merged.into_values().collect()
}

/// What stands in a queue's `holds`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds {
    until: HashMap<String, UnixMs>,
    breakers: HashMap<String, u32>,
}

impl Holds {
    pub(super) fn read(pairs: Vec<(String, String)>) -> Self {
        let mut holds = Self::default();
        for (name, number) in pairs {
            let Some(number) = parse_number(&number) else { continue };
            match name.strip_prefix(BREAKER) {
                Some(webhook) => {
                    holds.breakers.insert(webhook.to_owned(), u32::try_from(number).unwrap_or(1)).is_some()
                }
                None => holds.until.insert(name, UnixMs(number)).is_some(),
            };
        }
        holds
    }

    /// Until when a webhook is held; may be past.
    #[must_use]
    pub fn until(&self, webhook: &str) -> Option<UnixMs> {
        self.until.get(webhook).copied()
    }

    /// The holds so far of its breaker; 0 while it is closed.
    #[must_use]
    pub fn breaker(&self, webhook: &str) -> u32 {
        self.breakers.get(webhook).copied().unwrap_or(0)
    }

    pub(super) fn free(&mut self, webhook: &str) {
        self.until.remove(webhook);
        self.breakers.remove(webhook);
    }
}

/// Picks the health of webhooks out of a queue's `totals`.
pub(super) fn read_health(totals: Vec<(String, String)>) -> HashMap<String, HookHealth> {
    let mut all: HashMap<String, HookHealth> = HashMap::new();
    for (field, number) in totals {
        let ms = number.split_once('.').map_or(number.as_str(), |(ms, _)| ms);
        let (Some((what, webhook)), Some(number)) = (field.split_once(':'), parse_number(ms)) else { continue };
        let health = all.entry(webhook.to_owned()).or_default();
        let at = (number > 0).then_some(UnixMs(number));
        match what {
            "ok" => health.last_success_at = at,
            "bad" => health.last_failure_at = at,
            "row" => health.consecutive_failures = u64::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(success: Option<i64>, failure: Option<i64>, failures: u64) -> Note {
        let (success, failure) = (success.map(UnixMs), failure.map(|ms| Stamp::of(UnixMs(ms), Stamp::default())));
        Note { webhook: "h".to_owned(), rev: 1, success, failure, failures, ..Note::default() }
    }

    #[test]
    fn a_batch_counts_the_failures_since_its_last_success() {
        let (ok, bad) = (|at| note(Some(at), None, 0), |at| note(None, Some(at), 1));
        for (notes, want) in [
            (vec![bad(1), bad(2), bad(3)], note(None, Some(3), 3)),
            (vec![bad(1), ok(2)], note(Some(2), Some(1), 0)),
            (vec![bad(1), ok(2), bad(3)], note(Some(2), Some(3), 1)),
            (vec![ok(1), ok(5), bad(6), bad(7)], note(Some(5), Some(7), 2)),
            (vec![bad(6), ok(2)], note(Some(2), Some(6), 1)),
        ] {
            assert_eq!(merge(notes.iter()), [want], "{notes:?}");
        }
        let other = Note { rev: 2, ..bad(1) };
        assert_eq!(merge([bad(1), other.clone()].iter()), [bad(1), other], "each rev by itself");
    }

    #[test]
    fn holds_grow_and_the_last_word_about_a_breaker_counts() {
        let hold = |until, breaker| Note { held_until: Some(UnixMs(until)), breaker, ..note(None, None, 0) };
        let merged = merge([hold(9, Some(1)), hold(5, None)].iter());
        assert_eq!((merged[0].held_until, merged[0].breaker), (Some(UnixMs(9)), Some(1)));
        let holds = Holds::read(vec![("h".to_owned(), "9".to_owned()), ("!h".to_owned(), "2".to_owned())]);
        assert_eq!((holds.until("h"), holds.breaker("h"), holds.breaker("x")), (Some(UnixMs(9)), 2, 0));
    }

    #[test]
    fn health_is_read_beside_the_counters() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let all =
            read_health(vec![pair("enqueued", "7"), pair("ok:a:b", "5"), pair("row:a:b", "2"), pair("bad:c", "x")]);
        let a = HookHealth { last_success_at: Some(UnixMs(5)), last_failure_at: None, consecutive_failures: 2 };
        assert_eq!(all, HashMap::from([("a:b".to_owned(), a)]));
        assert_eq!(read_health(vec![pair("bad:a", "7.003")])["a"].last_failure_at, Some(UnixMs(7)));
    }

    #[test]
    fn failures_of_one_millisecond_differ() {
        let mut last = Stamp::default();
        let given = [7, 7, 7, 6, 8].map(|at| {
            last = Stamp::of(UnixMs(at), last);
            last.to_string()
        });
        assert_eq!(given, ["7.000", "7.001", "7.002", "7.003", "8.000"]);
    }
}
