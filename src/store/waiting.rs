//! The waiting hall of pull claims: one room a queue, where claims are served in turn; one loop for all rooms.
//!
//! Every claim comes in here, waiting or not. A room looks when somebody comes in and at the instant that the last look, or
//! the bell, named; between these a waiting claim costs Redis nothing. One look serves as many as it can, so claims that
//! come together share a visit. The bell was armed before the first look; a slow look guards against a lost ring.
//!
//! Nobody is forgotten: a client that goes away drops its ticket, which has its room swept; what was taken for it goes to
//! the next one, or back.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{broadcast::error::RecvError, mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Ring, Store, StoreError, Taken, Want,
    room::{Answer, Room, Waiter},
    window::{self, Outcome, Seen},
};
use crate::domain::{id::QueueName, time::UnixMs};

/// Claims and notes that may wait to be let in; past it callers wait.
const BACKLOG: usize = 16_384;
/// Taken up at once.
const MAX_DRAIN: usize = 1024;
/// A room with waiters looks at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A queue that answers "now" but gave nothing is left alone for so long.
const REST: Duration = Duration::from_secs(1);
/// The shortest wait for an instant that is still ahead: this process may think that it has come.
const SHORTEST: Duration = Duration::from_micros(200);
/// Pause after a look that failed.
const TROUBLE: Duration = Duration::from_millis(250);
/// In a queue where looks take tasks again and again, what is no task (leases that ended, expiry, retention) is looked at only so
/// often; the agenda sees to it otherwise.
const WHOLE_EVERY: Duration = Duration::from_millis(100);
/// Looks under way at once.
const MAX_LOOKS: usize = 64;
/// Rooms that are remembered; past it empty ones are forgotten.
const REMEMBERED: usize = 4096;

enum Note {
    Claim(QueueName, Waiter),
    /// Somebody of this queue went away.
    Gone(QueueName),
}

/// The way into the hall.
#[derive(Clone)]
pub struct Waiting {
    notes: mpsc::Sender<Note>,
    end: CancellationToken,
}

/// Has the room swept when its client goes away without an answer.
struct Ticket<'a> {
    hall: &'a Waiting,
    queue: &'a QueueName,
    answered: bool,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.hall.notes.try_send(Note::Gone(self.queue.clone())); // else the end of its wait sweeps
        }
    }
}

impl Waiting {
    /// A hall that nobody can enter.
    pub fn closed() -> Self {
        Self { notes: mpsc::channel(1).0, end: CancellationToken::new() }
    }

    /// Opens the hall; it ends when the last way in is dropped.
    pub fn start(store: Store) -> Self {
        let (notes, inbox) = mpsc::channel(BACKLOG);
        let end = CancellationToken::new();
        tokio::spawn(run(Hall::new(store), inbox, end.clone()));
        Self { notes, end }
    }

    /// Answers all empty from now on.
    pub fn end(&self) {
        self.end.cancel();
    }

    /// Waits in turn.
    pub async fn join(&self, queue: &QueueName, want: Want) -> Answer {
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + want.wait;
        let waiter = Waiter { want, until, looked: false, trouble: None, turn: 0, answer };
        let note = Note::Claim(queue.clone(), waiter);
        self.notes.send(note).await.map_err(|_| StoreError::Stopping)?;
        let mut ticket = Ticket { hall: self, queue, answered: false };
        let answer = answered.await;
        ticket.answered = true;
        answer.map_err(|_| StoreError::Stopping)?
    }
}

struct Hall {
    store: Arc<Store>,
    rooms: HashMap<QueueName, Room>,
    timers: BTreeSet<(Instant, QueueName)>,
    looks: JoinSet<Outcome>,
    /// Rooms where something happened.
    stirred: HashSet<QueueName>,
    ended: bool,
}

async fn run(mut hall: Hall, mut inbox: mpsc::Receiver<Note>, end: CancellationToken) {
    let mut bell = hall.store.bell().listen(); // armed before the first look
    let mut notes = Vec::with_capacity(MAX_DRAIN);
    let clock = Arc::clone(hall.store.clock());
    loop {
        if !hall.stirred.is_empty() {
            // whoever is ready to come in does so first, and shares the look
            tokio::task::yield_now().await;
            for note in std::iter::from_fn(|| inbox.try_recv().ok()).take(MAX_DRAIN) {
                hall.let_in(note);
            }
        }
        hall.attend();
        let next = hall.timers.first().map(|(at, _)| *at);
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let may_look = hall.looks.len() < MAX_LOOKS;
        tokio::select! {
            () = end.cancelled(), if !hall.ended => hall.end(),
            came = inbox.recv_many(&mut notes, MAX_DRAIN) => {
                if came == 0 {
                    return;
                }
                notes.drain(..).for_each(|note| hall.let_in(note));
            }
            ring = bell.recv() => match ring {
                Ok(Ring::Queue { queue, pull, .. }) => hall.hear(queue, pull),
                Ok(Ring::Look) | Err(RecvError::Lagged(_)) => hall.look_everywhere(),
                Err(RecvError::Closed) => return,
            },
            Some(done) = hall.looks.join_next() => match done {
                Ok(outcome) => hall.serve(outcome),
                Err(error) => {
                    tracing::error!(%error, "a look for waiting claims broke");
                    hall.forget_looks(); // it does not say whose it was
                }
            },
            () = clock.moved() => hall.look_everywhere(),
            () = sleep, if may_look => {}
        }
    }
}

impl Hall {
    fn new(store: Store) -> Self {
        Self {
            store: Arc::new(store),
            rooms: HashMap::new(),
            timers: BTreeSet::new(),
            looks: JoinSet::new(),
            stirred: HashSet::new(),
            ended: false,
        }
    }

    fn let_in(&mut self, note: Note) {
        match note {
            Note::Claim(_, waiter) if self.ended => _ = waiter.answer.send(Ok(Taken::nothing())),
            Note::Claim(queue, mut waiter) => {
                let room = self.rooms.entry(queue.clone()).or_default();
                room.turns += 1;
                waiter.turn = room.turns;
                room.waiters.push_back(waiter);
                self.stirred.insert(queue);
            }
            Note::Gone(queue) => _ = self.stirred.insert(queue),
        }
    }

    fn hear(&mut self, queue: QueueName, pull: Option<UnixMs>) {
        let Some(pull) = pull else { return };
        let Some(room) = self.rooms.get_mut(&queue).filter(|room| !room.waiters.is_empty()) else { return };
        let at = self.store.clock().instant_of(pull);
        room.rung |= room.looking.is_some() && at <= Instant::now();
        room.want(at);
        self.stirred.insert(queue);
    }

    fn look_everywhere(&mut self) {
        let now = Instant::now();
        for (queue, room) in &mut self.rooms {
            if !room.waiters.is_empty() {
                room.rung |= room.looking.is_some();
                room.want(now);
                self.stirred.insert(queue.clone());
            }
        }
    }

    fn forget_looks(&mut self) {
        for (queue, room) in &mut self.rooms {
            if room.looking.take().is_some() {
                room.want(Instant::now() + TROUBLE);
                self.stirred.insert(queue.clone());
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        for (queue, room) in &mut self.rooms {
            for waiter in room.waiters.drain(..) {
                let _ = waiter.answer.send(Ok(Taken::nothing())); // a client that has gone does not mind
            }
            self.stirred.insert(queue.clone());
        }
    }

    /// Does what is to be done in rooms where something happened or an instant has come.
    fn attend(&mut self) {
        let now = Instant::now();
        while let Some((at, queue)) = self.timers.first() {
            if *at > now || self.looks.len() >= MAX_LOOKS {
                break;
            }
            self.stirred.insert(queue.clone());
            let Some((_, queue)) = self.timers.pop_first() else { break };
            if let Some(room) = self.rooms.get_mut(&queue) {
                room.timer = None;
            }
        }
        for queue in std::mem::take(&mut self.stirred) {
            let Some(room) = self.rooms.get_mut(&queue) else { continue };
            room.dismiss(now);
            if room.looking.is_none() && room.wants_look(now) {
                if self.looks.len() < MAX_LOOKS {
                    room.looking = Some(room.turns);
                    room.at = None;
                    let (visit, known) = (room.next_visit(), room.known.take());
                    let look = window::look(Arc::clone(&self.store), queue.clone(), visit, known, room.whole_at);
                    self.looks.spawn(look);
                } else {
                    room.want(now);
                }
            }
            let timer = room.next_instant();
            if timer != room.timer {
                if let Some(old) = room.timer.take() {
                    self.timers.remove(&(old, queue.clone()));
                }
                room.timer = timer;
                if let Some(at) = timer {
                    self.timers.insert((at, queue));
                }
            }
        }
        if self.rooms.len() > REMEMBERED {
            self.rooms.retain(|_, room| room.looking.is_some() || !room.waiters.is_empty());
        }
    }

    /// Hands out what a look brought, in turn.
    fn serve(&mut self, outcome: Outcome) {
        let Outcome { queue, known, visit, result } = outcome;
        let Some(room) = self.rooms.get_mut(&queue) else { return };
        let (now, turn) = (Instant::now(), room.looking.take().unwrap_or(0));
        room.known = known;
        match result {
            Ok(Seen { taken, pull, now: answered, moved, whole }) => {
                match (moved, whole) {
                    (true, true) => room.whole_at = answered.plus(WHOLE_EVERY),
                    (true, false) => {}
                    (false, _) => room.whole_at = UnixMs(0), // a brief one makes the agenda want a visit: not for nothing
                }
                let left = room.hand_out(taken, visit.lease, &self.store);
                drop(Taken::new(left, &self.store, now + visit.lease));
                let more = pull.is_some_and(|at| at <= answered);
                if !more {
                    room.waiters.iter_mut().filter(|w| w.turn <= turn).for_each(|w| w.looked = true);
                }
                let clock = self.store.clock();
                let next = match pull {
                    None => now + LOOK_EVERY,
                    // by Redis's own clock it is still ahead, whatever this process thinks
                    Some(at) if at > answered => clock.instant_of(at).max(now + SHORTEST).min(now + LOOK_EVERY),
                    Some(_) if moved => now,
                    Some(_) => {
                        room.waiters.iter_mut().filter(|w| w.turn <= turn).for_each(|w| w.looked = true);
                        now + REST
                    }
                };
                room.want(next);
                room.waiters.iter_mut().for_each(|w| w.trouble = None);
            }
            Err(error) => {
                tracing::debug!(%queue, %error, "a look for waiting claims failed");
                if !error.may_repeat() {
                    for waiter in room.waiters.drain(..) {
                        let _ = waiter.answer.send(Err(error.clone()));
                    }
                }
                room.waiters.iter_mut().for_each(|w| w.trouble = Some(error.clone()));
                room.want(now + TROUBLE);
            }
        }
        if std::mem::take(&mut room.rung) {
            room.want(now);
        }
        self.stirred.insert(queue);
    }
}
