//! The dispatcher: knows at which instant each queue wants a visit, sleeps until the first of them, the bell, or the next
//! look at the agendas, and sends visits out. Nobody polls; the look guards against a lost ring.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::broadcast::error::RecvError,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::{
    Shop,
    slots::NoRoom,
    visit::{self, Known, Outcome},
};
use crate::{
    domain::{id::QueueName, time::UnixMs},
    store::{Agenda, Ring, StoreError},
};

/// The agendas are read this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A queue that answers "now" but gave nothing, or whose webhooks have no slot, is left alone for so long.
const REST: Duration = Duration::from_secs(1);
/// The shortest wait for an instant that is still ahead: this process may think that it has come.
const SHORTEST: Duration = Duration::from_micros(200);
/// Visits under way at once.
const MAX_VISITS: usize = 64;
/// A queue that has more due tasks is visited by a second one meanwhile, once it has room for so many: slots that came free
/// would wait for the first one to come back, and then for their own. With fewer, what calls cost Redis would outweigh it.
const ROOM_FOR_SECOND: usize = 16;
/// Queues that are remembered; past it those without an instant are forgotten, and read anew when they want a visit.
const REMEMBERED: usize = 20_000;
/// In a queue that is visited in a row, leases that ended, expiry and retention are looked at this often: they are more than
/// a quarter of what a visit costs Redis.
const WHOLE_EVERY: Duration = Duration::from_millis(100);
/// Pause after a visit that failed.
const TROUBLE: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Entry {
    /// When it wants a visit.
    at: Option<Instant>,
    /// Visits under way, two at most.
    visiting: u8,
    /// Its instant came while a visit was under way.
    rung: bool,
    /// It stands in [`Dispatcher::waiting`], once.
    waiting: bool,
    /// Its last visit failed.
    failed: bool,
    /// When the next visit looks at all that is due, not at tasks alone.
    whole_at: UnixMs,
    known: Option<Arc<Known>>,
}

struct Dispatcher {
    shop: Arc<Shop>,
    queues: HashMap<QueueName, Entry>,
    timers: BTreeSet<(Instant, QueueName)>,
    /// Queues with due tasks whose webhooks have no slot free.
    starved: HashSet<QueueName>,
    /// Queues of which the last visit took tasks and left others.
    pressed: HashSet<QueueName>,
    /// Queues with due tasks that wait for the process's own slots, in turn.
    waiting: VecDeque<QueueName>,
    visits: JoinSet<Outcome>,
    looks: JoinSet<Result<Agenda, StoreError>>,
}

/// Runs until the stop; visits under way are waited for, so that no claim is forgotten.
pub async fn run(shop: Arc<Shop>) {
    let mut bell = shop.store.bell().listen(); // armed before the first look
    let mut dispatcher = Dispatcher {
        queues: HashMap::new(),
        timers: BTreeSet::new(),
        starved: HashSet::new(),
        pressed: HashSet::new(),
        waiting: VecDeque::new(),
        visits: JoinSet::new(),
        looks: JoinSet::new(),
        shop: Arc::clone(&shop),
    };
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        dispatcher.send_out();
        shop.health.beat();
        let next = dispatcher.timers.first().map(|(at, _)| *at);
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let may_visit = dispatcher.visits.len() < MAX_VISITS;
        tokio::select! {
            () = shop.stop.cancelled() => break,
            ring = bell.recv() => match ring {
                Ok(Ring::Queue { queue, push, .. }) => dispatcher.hear(queue, push),
                Ok(Ring::Look) | Err(RecvError::Lagged(_)) => dispatcher.look(),
                Err(RecvError::Closed) => break,
            },
            Some(done) = dispatcher.visits.join_next() => match done {
                Ok(outcome) => dispatcher.take_in(outcome),
                Err(error) => {
                    tracing::error!(%error, "a visit broke");
                    dispatcher.queues.clear(); // it does not say whose it was
                    dispatcher.starved.clear();
                    dispatcher.pressed.clear();
                    dispatcher.waiting.clear();
                    shop.health.set_failing(0);
                    dispatcher.start_afresh();
                }
            },
            Some(seen) = dispatcher.looks.join_next() => match seen {
                Ok(Ok(agenda)) => {
                    match &agenda.trouble {
                        None => shop.health.look(),
                        Some(error) => shop.told.look("some of the agendas could not be read", error),
                    }
                    if let Some(name) = &agenda.foreign {
                        shop.told.foreign(name);
                    }
                    dispatcher.note(agenda);
                }
                Ok(Err(error)) => shop.told.look("the agendas could not be read", &error),
                Err(error) => tracing::error!(%error, "the look at the agendas broke"),
            },
            freed = shop.slots.freed() => dispatcher.feed(&freed),
            () = shop.store.clock().moved() => dispatcher.start_afresh(),
            _ = look.tick() => dispatcher.look(),
            () = sleep, if may_visit => {}
        }
    }
    while let Some(done) = dispatcher.visits.join_next().await {
        if let Err(error) = done {
            tracing::error!(%error, "a visit broke");
        }
    }
}

impl Dispatcher {
    /// Wants a visit no later than this.
    fn want(&mut self, queue: &QueueName, at: Instant) {
        let entry = self.queues.entry(queue.clone()).or_default();
        if entry.at.is_some_and(|old| old <= at) {
            return;
        }
        if let Some(old) = entry.at.replace(at) {
            self.timers.remove(&(old, queue.clone()));
        }
        self.timers.insert((at, queue.clone()));
    }

    /// A ring. It wakes also a queue that is resting.
    fn hear(&mut self, queue: QueueName, push: Option<UnixMs>) {
        let Some(push) = push else { return };
        let at = self.shop.store.clock().instant_of(push);
        let entry = self.queues.entry(queue.clone()).or_default();
        if entry.visiting > 0 && at <= Instant::now() {
            entry.rung = true;
        }
        self.want(&queue, at);
    }

    /// Forgets all instants, which a moved clock made wrong, and reads them anew.
    fn start_afresh(&mut self) {
        self.timers.clear();
        for entry in self.queues.values_mut() {
            entry.at = None;
        }
        self.look();
    }

    fn look(&mut self) {
        if self.looks.is_empty() {
            let store = self.shop.store.clone();
            self.looks.spawn(async move { store.agenda().await });
        }
    }

    fn note(&mut self, agenda: Agenda) {
        let resting = Instant::now() + REST;
        for (queue, at) in agenda.soon {
            let at = self.shop.store.clock().instant_of(at);
            let busy = self.queues.get(&queue).is_some_and(|e| e.visiting > 0 || e.at.is_some_and(|t| t <= resting));
            if !busy {
                self.want(&queue, at);
            }
        }
        if self.queues.len() > REMEMBERED {
            self.queues.retain(|_, e| e.visiting > 0 || e.waiting || e.at.is_some());
        }
    }

    /// Permits came back: their queues are visited if they had none, and those that wait for the process in turn.
    fn feed(&mut self, freed: &HashSet<QueueName>) {
        let now = Instant::now();
        for queue in freed {
            if self.starved.remove(queue) || self.takes_second(queue) {
                self.want(queue, now);
            }
        }
        for _ in 0..self.shop.slots.free_in_all() {
            let Some(queue) = self.waiting.pop_front() else { break };
            self.queues.entry(queue.clone()).or_default().waiting = false;
            self.want(&queue, now);
        }
        self.await_freed();
    }

    /// Asks to be woken by permits that come back, if that would change anything.
    fn await_freed(&self) {
        if !self.starved.is_empty() || !self.waiting.is_empty() {
            self.shop.slots.await_freed(1);
        } else if !self.pressed.is_empty() {
            self.shop.slots.await_freed(ROOM_FOR_SECOND);
        }
    }

    /// Whether a queue that is being visited is to be visited by a second one meanwhile. Half of the visits are for first ones.
    fn takes_second(&self, queue: &QueueName) -> bool {
        let entry = self.queues.get(queue).filter(|e| e.visiting == 1 && self.pressed.contains(queue));
        let Some(known) = entry.and_then(|e| e.known.as_ref()).filter(|_| self.visits.len() < MAX_VISITS / 2) else {
            return false;
        };
        self.shop.room_for(known).is_ok_and(|tasks| tasks >= ROOM_FOR_SECOND)
    }

    /// Sends visits to the queues whose instant has come.
    fn send_out(&mut self) {
        let now = Instant::now();
        while self.visits.len() < MAX_VISITS {
            match self.timers.first() {
                Some((at, _)) if *at <= now => {}
                _ => return,
            }
            let Some((_, queue)) = self.timers.pop_first() else { return };
            let takes_second = self.takes_second(&queue);
            let Some(entry) = self.queues.get_mut(&queue) else { continue };
            entry.at = None;
            if entry.visiting > 0 && !takes_second {
                entry.rung = true;
                continue;
            }
            entry.visiting += 1;
            self.starved.remove(&queue);
            let (shop, known) = (Arc::clone(&self.shop), entry.known.clone());
            self.visits.spawn(Box::pin(visit::visit(shop, queue, known, entry.whole_at)));
        }
    }

    fn take_in(&mut self, outcome: Outcome) {
        let now = Instant::now();
        let queue = outcome.queue;
        let entry = self.queues.entry(queue.clone()).or_default();
        entry.visiting = entry.visiting.saturating_sub(1);
        entry.known = outcome.known;
        let failed = std::mem::replace(&mut entry.failed, outcome.result.is_err());
        if failed != entry.failed {
            let all = self.shop.health.failing();
            self.shop.health.set_failing(if failed { all.saturating_sub(1) } else { all + 1 });
        }
        let is_last = entry.visiting == 0;
        let rung = is_last && std::mem::take(&mut entry.rung);
        self.pressed.remove(&queue);
        let next = match outcome.result {
            Ok(seen) => {
                if seen.whole {
                    entry.whole_at = seen.now.plus(WHOLE_EVERY);
                }
                let due = seen.push.is_some_and(|push| push <= seen.now);
                // what was taken may have filled the room; what came free meanwhile may have been told when nobody waited for it
                let known = entry.known.as_ref().filter(|_| seen.moved || seen.no_room.is_some());
                let no_room = known.and_then(|known| self.shop.room_for(known).err());
                if due && seen.moved && no_room != Some(NoRoom::NoWebhook) {
                    self.pressed.insert(queue.clone());
                }
                if due && no_room == Some(NoRoom::Webhook) {
                    self.starved.insert(queue.clone());
                }
                if due && no_room == Some(NoRoom::Process) && !entry.waiting {
                    entry.waiting = true;
                    self.waiting.push_back(queue.clone());
                }
                match seen.agenda {
                    None => None,
                    // by Redis's own clock it is still ahead, whatever this process thinks
                    Some(at) if at > seen.now => Some(self.shop.store.clock().instant_of(at).max(now + SHORTEST)),
                    Some(_) if due && no_room.is_some() => Some(now + REST),
                    Some(_) if seen.moved || seen.no_room.is_some() => Some(now),
                    Some(_) => Some(now + REST),
                }
            }
            Err(error) => {
                self.shop.told.visit(&queue, &error);
                entry.known = None;
                Some(now + TROUBLE)
            }
        };
        if let Some(at) = next.filter(|at| is_last || *at > now) {
            self.want(&queue, at); // what is to be done now, the other visit may have done
        }
        if rung {
            self.want(&queue, now);
        }
        self.await_freed();
    }
}
