//! The look at all agendas, once a second, and the list of all queues: what is about no queue in particular. One Redis
//! is asked by one script; of a Cluster each primary by one pipeline, as no call may touch two slots, and one that is down
//! hides none of the others'.

use std::time::Duration;

use deadpool_redis::redis::{self, Pipeline};
use tokio::time::Instant;

use super::{Fate, Inner, Reply, Store, StoreError, keys::SHARDS, script};
use crate::domain::{id::QueueName, time::UnixMs};

/// How far ahead the agendas are read.
const HORIZON: Duration = Duration::from_secs(1);
/// Most queues of a shard that one look at the agendas takes in.
const MAX_SOON: usize = 1000;
/// A primary of a Cluster that takes longer is left out of this look.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for the names of queues.
const NAMES_WITHIN: Duration = Duration::from_secs(5);
/// Shards that move while their queues are listed are asked for again so often.
const NAMES_TRIES: usize = 10;

/// Queues that want a visit within [`HORIZON`].
#[derive(Debug)]
pub struct Agenda {
    /// Redis's clock.
    pub now: UnixMs,
    /// Queue and instant.
    pub soon: Vec<(QueueName, UnixMs)>,
    /// Accepted enqueues of each shard; they never shrink unless writes were rolled back. `None`: not read.
    pub seqs: Vec<Option<u64>>,
    /// Why some shards were not read.
    pub trouble: Option<StoreError>,
    /// Something in an agenda that is no queue's name.
    pub foreign: Option<String>,
}

impl Agenda {
    fn new(now: UnixMs) -> Self {
        Self { now, soon: Vec::new(), seqs: vec![None; usize::from(SHARDS)], trouble: None, foreign: None }
    }

    /// A count that fell means that writes were rolled back.
    fn tell_seqs(&self, inner: &Inner, known: &[u64]) {
        let read = (0..SHARDS).zip(known).zip(&self.seqs);
        inner.see_seqs(read.filter_map(|((shard, before), seq)| Some((shard, *before, (*seq)?))));
    }

    fn take(&mut self, pairs: &mut Reply) -> Result<(), StoreError> {
        while pairs.left() > 0 {
            let (name, at) = (pairs.bytes()?, pairs.int()?);
            match std::str::from_utf8(&name).ok().and_then(|name| QueueName::parse(name).ok()) {
                Some(queue) => self.soon.push((queue, UnixMs(at))),
                None => self.foreign = Some(name.escape_ascii().to_string()), // it holds up nobody
            }
        }
        Ok(())
    }
}

impl Store {
    /// Looks at all agendas.
    ///
    /// # Errors
    /// See [`StoreError::fate`]. In a Cluster only if no primary could be asked.
    pub async fn agenda(&self) -> Result<Agenda, StoreError> {
        if self.inner.topology.is_cluster() { self.agenda_of_cluster().await } else { self.agenda_of_one().await }
    }

    async fn agenda_of_one(&self) -> Result<Agenda, StoreError> {
        let inner = &self.inner;
        let part = |name: &'static str| (0..SHARDS).map(move |shard| inner.keys.of_shard(shard, name));
        let keys: Vec<String> = part("agenda").chain(part("seq")).collect();
        let (sent, known) = (inner.now_sent(), inner.seqs.known());
        let mut call = script::AGENDA.call(0, &keys);
        call.arg(inner.clock.offset_ms()).arg(u64::try_from(HORIZON.as_millis()).unwrap_or(0)).arg(MAX_SOON);
        let mut reply = Reply::new("agenda", inner.work.send(&call).await?)?;
        let now = UnixMs(reply.int()?);
        inner.observe(now, sent, 0);
        let mut agenda = Agenda::new(now);
        let mut numbers = reply.list()?;
        for seq in &mut agenda.seqs {
            *seq = Some(u64::try_from(numbers.int()?).unwrap_or(0));
        }
        agenda.take(&mut reply.list()?)?;
        agenda.tell_seqs(inner, &known);
        Ok(agenda)
    }

    async fn agenda_of_cluster(&self) -> Result<Agenda, StoreError> {
        let inner = &self.inner;
        let until = inner.clock.now().plus(HORIZON).0;
        let commands = |shards: &[u16]| {
            let mut commands = redis::pipe();
            commands.cmd("TIME").ignore_errors();
            for shard in shards {
                commands.cmd("GET").arg(inner.keys.of_shard(*shard, "seq"));
                commands.cmd("ZRANGE").arg(inner.keys.of_shard(*shard, "agenda")).arg("-inf").arg(until);
                commands.arg("BYSCORE").arg("LIMIT").arg(0).arg(MAX_SOON).arg("WITHSCORES");
            }
            commands
        };
        let (sent, known) = (Instant::now(), inner.seqs.known());
        let mut agenda = Agenda::new(inner.clock.now());
        let mut heard = false;
        for (shards, answer) in inner.work.spread("agenda", LOOK_WITHIN, commands).await {
            let read = answer.and_then(|value| self.read_agendas(value, &shards, sent, &mut agenda));
            match read {
                Ok(()) => heard = true,
                Err(error) => agenda.trouble = Some(error),
            }
        }
        agenda.tell_seqs(inner, &known);
        match (heard, agenda.trouble.take()) {
            (false, Some(error)) => Err(error),
            (_, trouble) => Ok(Agenda { trouble, ..agenda }),
        }
    }

    fn read_agendas(
        &self,
        value: redis::Value,
        shards: &[u16],
        sent: Instant,
        agenda: &mut Agenda,
    ) -> Result<(), StoreError> {
        let mut reply = Reply::new("agenda", value)?;
        agenda.now = self.observe_time(&mut reply, sent, shards[0])?;
        let mut result = Ok(());
        for shard in shards {
            let seq = reply.number_or_none();
            let soon = reply.list().and_then(|mut pairs| agenda.take(&mut pairs));
            match seq.and_then(|seq| soon.map(|()| seq)) {
                Ok(seq) => agenda.seqs[usize::from(*shard)] = Some(u64::try_from(seq.unwrap_or(0)).unwrap_or(0)),
                Err(error) => result = Err(error), // the others are read all the same
            }
        }
        result
    }

    /// Reads an answer to TIME, of the primary that has this shard.
    pub(super) fn observe_time(&self, reply: &mut Reply, sent: Instant, shard: u16) -> Result<UnixMs, StoreError> {
        let mut time = reply.list()?;
        let (seconds, micros) = (time.int()?, time.int()?);
        let now = UnixMs(seconds * 1000 + micros / 1000);
        self.inner.observe(now, (0, sent), shard);
        Ok(UnixMs(now.0 + self.inner.clock.offset_ms()))
    }

    /// The names of all queues, sorted. A foreign key in a shard's place is left out, with a line in the log.
    ///
    /// # Errors
    /// Redis is out of reach, or a part of it: a list with gaps would be a lie.
    pub async fn queue_names(&self) -> Result<Vec<QueueName>, StoreError> {
        let inner = &self.inner;
        let commands = |shards: &[u16]| {
            let mut commands = Pipeline::with_capacity(shards.len());
            commands.ignore_errors();
            for shard in shards {
                commands.cmd("HKEYS").arg(inner.keys.of_shard(*shard, "queues"));
            }
            commands
        };
        let mut tries = 0;
        'again: loop {
            tries += 1;
            let mut names = Vec::new();
            for (shards, answer) in inner.reads.spread("queues", NAMES_WITHIN, commands).await {
                let mut reply = Reply::new("queues", answer?)?;
                for shard in shards {
                    if tries < NAMES_TRIES && reply.is_elsewhere() {
                        tokio::time::sleep(super::PAUSE.1).await;
                        continue 'again;
                    }
                    let mut fields = match reply.list() {
                        Ok(fields) => fields,
                        // one that is damaged hides no others; a Redis that loads or refuses us shows none
                        Err(error) if error.fate() == Fate::Bug => {
                            tracing::warn!(shard, %error, "a shard's list of queues cannot be read");
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    while fields.left() > 0 {
                        names.extend(fields.text().ok().and_then(|name| QueueName::parse(&name).ok()));
                    }
                }
            }
            names.sort();
            return Ok(names);
        }
    }
}
