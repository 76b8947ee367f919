//! The checker: joins what was acknowledged with what arrived. Pure, so that it can be checked itself (`check_works`).

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::journal::{Claimed, Ends, Journal, Seen, Told, Window};

/// The cause of a second claim: a consumer forgot the first one.
pub const LAPSED: &str = "pull lease over";

/// The cause of a second claim: Redis forgot the first one, with the primary that had given it.
pub const CLAIM_FORGOTTEN: &str = "claim forgotten";

/// The cause of an attempt after a cancel: the claim is that of a primary whose place another has taken, which acknowledged
/// the cancel. Claims are not waited for, so the two may know nothing of each other.
pub const OLD_CLAIM: &str = "claim of a lost primary, after a cancel";

/// The cause of a second delivery: Redis forgot a task that nobody had been promised yet, and the client, or the service for it,
/// asked again.
pub const FORGOTTEN: &str = "forgotten before it was acknowledged";

/// What a run is judged by.
pub struct Evidence<'a> {
    pub journal: &'a Journal,
    pub seen: &'a [Seen],
    pub ends: &'a Ends,
    pub windows: &'a [Window],
    /// The pause after a failed attempt, at least.
    pub backoff_ms: i64,
    /// How early is early: 0 but where clocks differ.
    pub tolerance_ms: i64,
    /// Whether every record is kept until the end; Redis may be too full for it.
    pub all_kept: bool,
    /// Whether what was not acknowledged yet may be delivered and then lost, as when a primary goes before its replica has
    /// what it did: a repeated POST then makes the task anew.
    pub forgets: bool,
}

/// Each entry of a list says which task and why.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Findings {
    pub tasks: usize,
    pub posts: usize,
    pub claims: usize,
    pub cancelled: usize,
    /// Acknowledged, and neither delivered nor ended by a cancel.
    pub lost: Vec<String>,
    pub early: Vec<String>,
    /// Second deliveries by cause.
    pub doubles: BTreeMap<String, usize>,
    pub unexplained: Vec<String>,
    /// Dead although no task of these loads may die, by reason.
    pub dead: BTreeMap<String, usize>,
    /// Attempts that began after a cancel was acknowledged as done.
    pub after_cancel: Vec<String>,
    /// Bodies or uids that are not those of the task; POSTs of tasks that nobody scheduled.
    pub strange: Vec<String>,
    /// Answers that contradict the contract.
    pub wrong: Vec<String>,
    pub given_up: usize,
}

impl Findings {
    /// All that a standard pass forbids, as one text; empty if it passes.
    pub fn faults(&self) -> String {
        let lists = [
            ("lost", &self.lost),
            ("early", &self.early),
            ("unexplained duplicates", &self.unexplained),
            ("attempts after a cancel", &self.after_cancel),
            ("strange", &self.strange),
            ("wrong answers", &self.wrong),
        ];
        let mut text = String::new();
        for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            text += &format!("{} {name}, as {:?}\n", list.len(), &list[..list.len().min(3)]);
        }
        if !self.dead.is_empty() {
            text += &format!("dead: {:?}\n", self.dead);
        }
        if self.given_up > 0 {
            text += &format!("{} calls were never answered\n", self.given_up);
        }
        text
    }

    pub fn doubled(&self) -> usize {
        self.doubles.values().sum()
    }
}

pub fn check(evidence: &Evidence<'_>) -> Findings {
    let journal = evidence.journal;
    let mut found = Findings {
        tasks: journal.told.len(),
        posts: evidence.seen.len(),
        claims: journal.claims.len(),
        wrong: journal.wrong.clone(),
        given_up: journal.given_up,
        ..Findings::default()
    };
    let mut posts: HashMap<&str, Vec<&Seen>> = HashMap::new();
    evidence.seen.iter().for_each(|seen| posts.entry(&seen.id).or_default().push(seen));
    let mut claims: HashMap<&str, Vec<&Claimed>> = HashMap::new();
    journal.claims.iter().for_each(|claim| claims.entry(&claim.id).or_default().push(claim));
    let mut known: HashMap<&str, usize> = HashMap::new();
    for told in &journal.told {
        if let Some(other) = known.insert(&told.id, told.n) {
            found.strange.push(format!("{}: one id for numbers {other} and {}", told.id, told.n));
        }
        let mut posts = posts.remove(told.id.as_str()).unwrap_or_default();
        posts.sort_by_key(|seen| seen.at);
        let mut claims = claims.remove(told.id.as_str()).unwrap_or_default();
        claims.sort_by_key(|claim| claim.lease_ends); // the order in which Redis gave them
        judge(evidence, told, &posts, &claims, &mut found);
    }
    // What is left was acknowledged to nobody: only a POST without an id whose answer was lost can have made it.
    for (id, seen) in posts {
        if !seen.iter().all(|s| journal.unanswered.contains(&s.n)) {
            found.strange.push(format!("{id}: a POST of a task that nobody scheduled"));
        }
        doubles(evidence, id, &seen, &mut found);
    }
    found
}

fn judge(evidence: &Evidence<'_>, told: &Told, posts: &[&Seen], claims: &[&Claimed], found: &mut Findings) {
    let id = &told.id;
    let had_another_life = evidence.forgets && evidence.journal.unanswered.contains(&told.n);
    let mut own = |uid: &str| {
        if uid != told.uid && had_another_life {
            *found.doubles.entry(FORGOTTEN.to_owned()).or_default() += 1;
        } else if uid != told.uid {
            found.strange.push(format!("{id}: uid {uid} and not {}", told.uid));
        }
        uid == told.uid
    };
    let posts: Vec<&Seen> = posts.iter().copied().filter(|seen| own(&seen.uid)).collect();
    let claims: Vec<&Claimed> = claims.iter().copied().filter(|claim| own(&claim.uid)).collect();
    let (posts, claims) = (&posts[..], &claims[..]);
    let delivered = posts.iter().any(|s| (200..300).contains(&s.status)) || claims.iter().any(|c| c.acked.is_some());
    let (state, reason) = match evidence.ends.get(id) {
        Some(end) => (end.state.as_str(), end.reason.as_deref()),
        None => ("gone", None),
    };
    let cancel = told.cancel.map(|(status, _)| status);
    let right = match (state, cancel) {
        ("completed", None | Some(202 | 409)) => delivered,
        ("cancelled", Some(200 | 202)) => true,
        ("gone", Some(200)) if !evidence.all_kept => true,
        ("gone", _) if !evidence.all_kept => delivered,
        ("dead", _) => {
            *found.dead.entry(reason.unwrap_or("?").to_owned()).or_default() += 1;
            true
        }
        _ => false,
    };
    if state == "cancelled" {
        found.cancelled += 1;
    }
    if !right {
        let delivered = if delivered { "delivered" } else { "not delivered" };
        found.lost.push(format!("{id} ({}): {state}, {delivered}, DELETE {cancel:?}", told.queue));
    }
    let from = told.run_at - evidence.tolerance_ms;
    for at in posts.iter().map(|s| s.at).chain(claims.iter().map(|c| c.at)).filter(|at| *at < from) {
        // Before it was acknowledged: in a life that Redis forgot, after which the service itself asked again.
        if evidence.forgets && at < told.known && disturbed(evidence, at) {
            *found.doubles.entry(FORGOTTEN.to_owned()).or_default() += 1;
        } else {
            found.early.push(format!("{id} ({}): {} ms early", told.queue, told.run_at - at));
        }
    }
    if let Some((200, done)) = told.cancel {
        for at in posts.iter().map(|s| s.at).chain(claims.iter().map(|c| c.asked)).filter(|at| *at > done) {
            if evidence.forgets && disturbed(evidence, at) {
                *found.doubles.entry(OLD_CLAIM.to_owned()).or_default() += 1;
            } else {
                found.after_cancel.push(format!("{id}: {} ms after its cancel", at - done));
            }
        }
    }
    for seen in posts {
        if seen.n != told.n || seen.odd_body.is_some() {
            found.strange.push(format!("{id}: number {} and not {}: {:?}", seen.n, told.n, seen.odd_body));
        }
    }
    doubles(evidence, id, posts, found);
    lapses(evidence, id, claims, found);
}

/// A POST after one that was answered 2xx is a double, and needs a cause. One after another answer is a retry, and needs
/// its pause.
fn doubles(evidence: &Evidence<'_>, id: &str, posts: &[&Seen], found: &mut Findings) {
    for pair in posts.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let on_record = evidence.ends.get(id).is_some_and(|end| end.lost > 0);
        let could = |w: &&Window| (w.from..=w.to).contains(&first.at) && (on_record || !w.on_record);
        let cause = evidence.windows.iter().find(could).map(|w| w.cause);
        let ok = (200..300).contains(&first.status);
        if !ok && second.at >= first.at + evidence.backoff_ms {
            continue;
        }
        match cause {
            Some(cause) => {
                let record = if on_record { "on record as lost" } else { "settle not known" };
                *found.doubles.entry(format!("{cause}, {record}")).or_default() += 1;
            }
            None => {
                let near = evidence.windows.iter().map(|w| (w.from - first.at).max(first.at - w.to)).min();
                found.unexplained.push(format!(
                    "{id}: answered {}, and again {} ms later; the next fault is {near:?} ms off; on record: {on_record}",
                    first.status,
                    second.at - first.at
                ));
            }
        }
    }
}

/// Whether this was around a fault.
fn disturbed(evidence: &Evidence<'_>, at: i64) -> bool {
    evidence.windows.iter().any(|w| !w.on_record && (w.from..=w.to).contains(&at))
}

/// An ack counts until the task is claimed anew, so one that was acknowledged is the last claim's. A claim before the end of
/// the lease before it needs a cause too, unless that one was given back. A claim is no promise, so Redis may forget it with its
/// primary; and one that was a primary and does not know better may once more give what its successor gave.
fn lapses(evidence: &Evidence<'_>, id: &str, claims: &[&Claimed], found: &mut Findings) {
    for pair in claims.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let given_back = first.nacked.is_some_and(|at| at <= second.at);
        let forgotten = evidence.forgets && (disturbed(evidence, first.at) || disturbed(evidence, second.at));
        if first.acked.is_none() && given_back {
            continue;
        }
        if first.acked.is_none() && second.at >= first.lease_ends {
            *found.doubles.entry(LAPSED.to_owned()).or_default() += 1;
        } else if forgotten {
            *found.doubles.entry(CLAIM_FORGOTTEN.to_owned()).or_default() += 1;
        } else if let Some(acked) = first.acked {
            found.unexplained.push(format!("{id}: claimed {} ms after its ack", second.at - acked));
        } else {
            found.unexplained.push(format!("{id}: claimed twice within a lease, {} ms apart", second.at - first.at));
        }
    }
}
