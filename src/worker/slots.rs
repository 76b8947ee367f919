//! Permits: a call needs one of its webhook and one of the process. Permit first, then claim, so that nothing is held
//! that nobody works on; slots per webhook keep one slow receiver from starving the rest.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use url::Url;

use super::hook::Hook;
use crate::{
    domain::{attempt::Report, breaker::Turn, id::QueueName, time::UnixMs, webhook::Webhook},
    store::{Holds, Note, QueueView},
};

/// Webhooks whose permits are remembered while none is in use; past it the idle ones are forgotten.
const REMEMBERED: usize = 4096;

/// A webhook: its permits, how many there are of them, and what is known of the receiver behind its URL.
struct Entry {
    size: usize,
    permits: Arc<Semaphore>,
    url: Url,
    hook: Arc<Hook>,
}

/// The permits of one process.
pub struct Slots {
    calls: Arc<Semaphore>,
    /// Tasks claimed and not settled yet.
    unsettled: Arc<Semaphore>,
    in_all: usize,
    per_webhook: usize,
    webhooks: Mutex<HashMap<(QueueName, String), Entry>>,
    /// Queues whose permits came back since the last look.
    freed: Mutex<HashSet<QueueName>>,
    /// Somebody waits for permits: that which comes back as the last of so many rings. 0: nobody is woken for it.
    awaited: AtomicUsize,
    bell: Notify,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// No webhook is enabled: nothing could be called.
    NoWebhook,
    /// All calls that the queue's webhooks may have are under way.
    Webhook,
    /// All calls that the process may have are under way, or as many outcomes wait to be settled.
    Process,
}

/// Room for so many tasks, taken before they are claimed, so that visits under way at once never count on the same.
pub struct Room {
    /// Tasks.
    pub tasks: usize,
    calls: OwnedSemaphorePermit,
    unsettled: OwnedSemaphorePermit,
    /// Of each webhook as many as it had, up to one a task.
    webhooks: Vec<OwnedSemaphorePermit>,
}

/// Permits and receivers of a queue's enabled webhooks, in their order.
pub struct Places(Vec<(Arc<Semaphore>, Arc<Hook>)>);

/// One task's place among the unsettled.
pub struct Seat(#[allow(dead_code)] OwnedSemaphorePermit); // held, never read

/// One call's permits, and its turn.
pub struct Slot {
    hook: Arc<Hook>,
    turn: Option<Turn>,
    _webhook: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
}

impl Slot {
    /// Until when this process knows the webhook to be held.
    pub fn held_until(&self) -> Option<UnixMs> {
        self.hook.held_until()
    }

    /// The call came back at `now`.
    pub fn hear(mut self, report: &Report, now: UnixMs) -> Note {
        self.turn.take().map_or_else(Note::default, |turn| self.hook.hear(turn, report, now))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.hook.give_back(turn);
        }
    }
}

impl Slots {
    pub fn new(calls: usize, per_webhook: usize) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(calls)),
            unsettled: Arc::new(Semaphore::new(calls)),
            in_all: calls,
            per_webhook,
            webhooks: Mutex::default(),
            freed: Mutex::default(),
            awaited: AtomicUsize::new(0),
            bell: Notify::new(),
        }
    }

    fn of(&self, queue: &QueueName, webhook: &Webhook) -> (Arc<Semaphore>, Arc<Hook>) {
        let size = self.size_for(webhook);
        let mut webhooks = self.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
        if webhooks.len() > REMEMBERED {
            webhooks.retain(|_, e| e.permits.available_permits() < e.size || !e.hook.is_idle());
        }
        let fresh =
            || Entry { size, permits: Arc::new(Semaphore::new(size)), url: webhook.url.clone(), hook: Arc::default() };
        let entry = webhooks.entry((queue.clone(), webhook.id.as_str().to_owned())).or_insert_with(fresh);
        if entry.size != size {
            (entry.size, entry.permits) = (size, Arc::new(Semaphore::new(size))); // those under the old number run out
        }
        if entry.url != webhook.url {
            (entry.url, entry.hook) = (webhook.url.clone(), Arc::default()); // another receiver: nothing is known of it
        }
        (Arc::clone(&entry.permits), Arc::clone(&entry.hook))
    }

    /// The queue's set-up was read anew: what was freed is free.
    pub fn refresh(&self, view: &QueueView) {
        for webhook in view.webhooks.iter().filter(|w| w.enabled) {
            self.of(&view.queue.name, webhook).1.refresh(&view.holds, webhook.id.as_str());
        }
    }

    /// Breakers that other processes opened are open here too.
    pub fn join(&self, view: &QueueView, holds: &Holds) {
        for webhook in view.webhooks.iter().filter(|w| holds.breaker(w.id.as_str()) > 0) {
            self.of(&view.queue.name, webhook).1.join(holds.breaker(webhook.id.as_str()));
        }
    }

    fn size_for(&self, webhook: &Webhook) -> usize {
        webhook.max_in_flight.map_or(self.per_webhook, |n| (n as usize).min(Semaphore::MAX_PERMITS))
    }

    /// For how many tasks of a queue there is room: as many as its freest webhook could be called for.
    pub fn room_for(&self, view: &QueueView, now: UnixMs) -> Result<usize, NoRoom> {
        let enabled = view.webhooks.iter().filter(|w| w.enabled);
        let free = enabled.map(|w| {
            let (permits, hook) = self.of(&view.queue.name, w);
            permits.available_permits().min(hook.room(now).unwrap_or(usize::MAX)).min(self.share(w, &permits))
        });
        let free = free.max().ok_or(NoRoom::NoWebhook)?;
        if free == 0 {
            return Err(NoRoom::Webhook);
        }
        Some(free.min(self.free_in_all())).filter(|tasks| *tasks > 0).ok_or(NoRoom::Process)
    }

    /// Takes room for up to `most` tasks of a queue.
    pub fn room(&self, view: &QueueView, most: usize, now: UnixMs) -> Result<Room, NoRoom> {
        let tasks = self.room_for(view, now)?.min(most);
        let n = u32::try_from(tasks).ok().filter(|n| *n > 0).ok_or(NoRoom::Process)?;
        let calls = Arc::clone(&self.calls).try_acquire_many_owned(n).map_err(|_| NoRoom::Process)?;
        let unsettled = Arc::clone(&self.unsettled).try_acquire_many_owned(n).map_err(|_| NoRoom::Process)?;
        let enabled = view.webhooks.iter().filter(|w| w.enabled);
        let webhooks = enabled.filter_map(|webhook| {
            let permits = self.of(&view.queue.name, webhook).0;
            let free = u32::try_from(permits.available_permits()).unwrap_or(u32::MAX);
            permits.try_acquire_many_owned(free.min(n)).ok()
        });
        Ok(Room { tasks, calls, unsettled, webhooks: webhooks.collect() })
    }

    /// Calls that a webhook may have beyond those under way, for the sake of the others: the last quarter of the process's
    /// calls is for webhooks with few of them, so that many that hang together starve nobody.
    fn share(&self, webhook: &Webhook, permits: &Semaphore) -> usize {
        let under_way = self.size_for(webhook).saturating_sub(permits.available_permits());
        let free = self.free_in_all();
        let common = free.saturating_sub(self.in_all / 4);
        common.max((free / 4).max(1).saturating_sub(under_way))
    }

    /// Tasks that the process could take on.
    pub fn free_in_all(&self) -> usize {
        self.calls.available_permits().min(self.unsettled.available_permits())
    }

    fn lock_freed(&self) -> MutexGuard<'_, HashSet<QueueName>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Permits of this queue came back.
    pub fn free(&self, queue: &QueueName) {
        let mut freed = self.lock_freed();
        if !freed.contains(queue) {
            freed.insert(queue.clone());
        }
        if self.awaited.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)) == Ok(1) {
            self.bell.notify_one();
        }
    }

    /// [`Self::freed`] tells of permits that come back, once there are so many from now on; where one is enough, also of those
    /// that came back since it last told.
    pub fn await_freed(&self, permits: usize) {
        let freed = self.lock_freed();
        if freed.is_empty() || permits > 1 {
            self.awaited.store(permits, Ordering::Release);
        } else {
            self.bell.notify_one();
        }
    }

    /// Waits until permits came back, and says whose. Once for each [`Self::await_freed`].
    pub async fn freed(&self) -> HashSet<QueueName> {
        self.bell.notified().await;
        std::mem::take(&mut *self.lock_freed())
    }

    /// The webhooks of a queue that could be called.
    pub fn places(&self, view: &QueueView) -> Places {
        let enabled = view.webhooks.iter().filter(|w| w.enabled);
        Places(enabled.map(|webhook| self.of(&view.queue.name, webhook)).collect())
    }

    /// A place for one task and, for each enabled webhook, a slot if one is free. Call only for as many tasks as the room
    /// is for.
    pub fn seat(&self, room: &mut Room, places: &Places) -> (Option<Seat>, Vec<Option<Slot>>) {
        let mut reserved = room.calls.split(1);
        let slots = places.0.iter().map(|(permits, hook)| {
            let kept = room.webhooks.iter_mut().find(|kept| Arc::ptr_eq(kept.semaphore(), permits));
            let permit =
                kept.and_then(|kept| kept.split(1)).or_else(|| Arc::clone(permits).try_acquire_owned().ok())?;
            let process = reserved.take().or_else(|| Arc::clone(&self.calls).try_acquire_owned().ok())?;
            let turn = Some(hook.turn()?);
            Some(Slot { hook: Arc::clone(hook), turn, _webhook: permit, _process: process })
        });
        let slots = slots.collect();
        (room.unsettled.split(1).map(Seat), slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        id::WebhookId,
        queue::{Pause, Queue, Settings},
        secret::Secret,
    };

    fn webhook(id: &str, max_in_flight: u32) -> Webhook {
        Webhook {
            id: WebhookId::parse(id).unwrap(),
            url: Url::parse("http://127.0.0.1:1/").unwrap(),
            enabled: true,
            description: None,
            headers: Vec::new(),
            timeout: None,
            max_in_flight: Some(max_in_flight),
            created_at: UnixMs(0),
            secret: Secret::from_bytes(&[7; 32]).unwrap(),
            previous_secret: None,
            disabled_reason: None,
        }
    }

    #[test]
    fn visits_under_way_at_once_never_count_on_the_same_permits() {
        let name = QueueName::parse("q").unwrap();
        let view = QueueView {
            now: UnixMs(0),
            rev: 1,
            queue: Queue { name, created_at: UnixMs(0), settings: Settings::default(), pause: Pause::No },
            webhooks: vec![webhook("wide", 5), webhook("narrow", 2)],
            holds: Holds::default(),
            health: HashMap::new(),
            unreadable: Vec::new(),
        };
        let slots = Slots::new(100, 64);
        let mut first = slots.room(&view, 3, UnixMs(0)).unwrap();
        let mut second = slots.room(&view, 100, UnixMs(0)).unwrap();
        assert_eq!((first.tasks, second.tasks), (3, 2), "of the five that the freest webhook has");
        assert_eq!(slots.room_for(&view, UnixMs(0)), Err(NoRoom::Webhook));

        let places = slots.places(&view);
        let seat = |room: &mut Room| slots.seat(room, &places);
        let seated: Vec<_> = (0..3).map(|_| seat(&mut first)).chain((0..2).map(|_| seat(&mut second))).collect();
        let calls = |i: usize| seated.iter().filter(|(seat, slots)| seat.is_some() && slots[i].is_some()).count();
        assert_eq!((calls(0), calls(1)), (5, 2), "each has its place, and the narrow webhook no more than its own");
        drop((first, second, seated));
        assert_eq!(slots.room_for(&view, UnixMs(0)), Ok(5), "all came back");
    }
}
