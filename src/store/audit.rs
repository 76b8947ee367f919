//! Proves on live data that nothing is lost or left over: every task in one place, with its record; figures that fit.
//!
//! Read-only unless told to repair, and safe beside running services: what one script call looks at, it sees at one
//! instant. Ids are gathered by SCAN, which shows whatever was there all the time; each is then judged in one call. Ids
//! that come and go meanwhile are right by construction or seen by the next run.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use deadpool_redis::redis;

use super::{
    Audit, Change, Fault, HookChange, Reply, Store, StoreError,
    keys::{parse_raw_id, shard_of},
    record::Record,
    run_row::Run,
    script,
};
use crate::domain::{id::QueueName, queue::Settings};

/// Ids judged in one call.
const PIECE: usize = 100;
/// Keys asked for in one step of a walk over all keys.
const SCAN_COUNT: usize = 1000;
/// Longest wait for a step of it.
const SCAN_WITHIN: Duration = Duration::from_secs(5);
/// The sets in which a task can stand.
const SETS: [&str; 6] = ["due", "active", "dead", "completed", "cancelled", "expired"];

/// A queue's figures as `books` answers them.
struct Books {
    has_gate: bool,
    rev: u64,
    open: BTreeSet<String>,
    records: i64,
    members: i64,
    wanted: i64,
    agenda: i64,
    balance: i64,
    retrying: i64,
    totals: Vec<(String, String)>,
}

impl Store {
    /// Looks at everything that Duepost keeps, and with `repair` puts right what can be.
    ///
    /// # Errors
    /// Redis is out of reach.
    pub async fn audit(&self, repair: bool) -> Result<Audit, StoreError> {
        let mut audit = Audit::default();
        let listed: BTreeSet<QueueName> = self.queue_names().await?.into_iter().collect();
        let mut all = listed.clone();
        all.extend(self.queues_by_keys().await?);
        for queue in all {
            audit.queues += 1;
            if !listed.contains(&queue) && self.stats(&queue).await?.is_none() && self.has_data(&queue).await? {
                if repair {
                    self.create_queue(&queue, &Settings::default()).await?;
                }
                audit.found(&queue, None, Fault::Unlisted, "its data is there, its settings are not".into(), repair);
            }
            self.audit_queue(&queue, repair, &mut audit).await?;
        }
        Ok(audit)
    }

    async fn audit_queue(&self, queue: &QueueName, repair: bool, audit: &mut Audit) -> Result<(), StoreError> {
        let before = self.books(queue, false).await?;
        let faults = audit.faults;
        let retrying = self.audit_records(queue, repair, audit).await?;
        for part in SETS {
            self.audit_ids(queue, ("ZSCAN", part, Fault::Ghost), repair, audit).await?;
        }
        self.audit_ids(queue, ("ZSCAN", "expiry", Fault::Expiry), repair, audit).await?;
        self.audit_ids(queue, ("HSCAN", "runs", Fault::StrayRun), repair, audit).await?;
        let books = self.books(queue, repair).await?;
        let still = books.totals == before.totals && (books.records, books.members) == (before.records, before.members);
        if books.balance != 0 {
            let detail =
                format!("{} tasks too {}", books.balance.abs(), if books.balance > 0 { "few" } else { "many" });
            audit.found(queue, None, Fault::Books, detail, repair);
        }
        if books.wanted >= 0 && (books.agenda < 0 || books.agenda > books.wanted) {
            let late = if books.agenda < 0 {
                "no visit is planned".to_owned()
            } else {
                format!("the next visit comes {} ms late", books.agenda - books.wanted)
            };
            audit.found(queue, None, Fault::Agenda, late, repair);
        }
        if still && audit.faults == faults && books.retrying != retrying {
            let detail = format!("{} are counted, {retrying} are there", books.retrying);
            audit.found(queue, None, Fault::Retrying, detail, false);
        }
        self.audit_gate(queue, &books, repair, audit).await
    }

    /// Reads all records; answers how many scheduled tasks had an attempt.
    async fn audit_records(&self, queue: &QueueName, repair: bool, audit: &mut Audit) -> Result<i64, StoreError> {
        let mut cursor = 0;
        loop {
            let (next, pairs) = self.scan(queue, "HSCAN", "tasks", cursor).await?;
            let mut ids = Vec::with_capacity(pairs.len() / 2);
            let mut pairs = pairs.into_iter();
            while let (Some(id), Some(record)) = (pairs.next(), pairs.next()) {
                match parse_raw_id(&id) {
                    None => audit.found(queue, Some(&id), Fault::Id, "no id of a task".into(), false),
                    Some(parsed) => {
                        if let Err(error) = Record::decode(&parsed, record.into()) {
                            audit.found(queue, Some(&id), Fault::Record, error.to_string(), false);
                        }
                    }
                }
                ids.push(id);
            }
            audit.tasks += ids.len();
            self.judge(queue, &ids, None, repair, audit).await?;
            cursor = next;
            if cursor == 0 {
                return self.count_retrying(queue).await;
            }
        }
    }

    async fn count_retrying(&self, queue: &QueueName) -> Result<i64, StoreError> {
        let (mut cursor, mut retrying) = (0, 0);
        let due = self.inner.keys.of_part(queue, "due");
        loop {
            let (next, pairs) = self.scan(queue, "HSCAN", "runs", cursor).await?;
            let tried: Vec<&Vec<u8>> = pairs
                .chunks_exact(2)
                .filter(|pair| Run::decode(pair[1].clone().into()).is_ok_and(|run| run.retried))
                .map(|pair| &pair[0])
                .collect();
            for ids in tried.chunks(PIECE) {
                let mut commands = redis::pipe();
                ids.iter().for_each(|id| _ = commands.cmd("ZSCORE").arg(&due).arg(id));
                let scores = Reply::new("audit", self.inner.reads.pipe("audit", shard_of(queue), &commands).await?)?;
                retrying += scores.count_present();
            }
            cursor = next;
            if cursor == 0 {
                return Ok(retrying);
            }
        }
    }

    /// Judges the ids of a part that have no record; each part tells of the fault that is its own, so none is told twice.
    async fn audit_ids(
        &self,
        queue: &QueueName,
        (command, part, tell): (&'static str, &'static str, Fault),
        repair: bool,
        audit: &mut Audit,
    ) -> Result<(), StoreError> {
        let (mut cursor, tasks) = (0, self.inner.keys.of_part(queue, "tasks"));
        loop {
            let (next, pairs) = self.scan(queue, command, part, cursor).await?;
            let ids: Vec<Vec<u8>> = pairs.into_iter().step_by(2).collect();
            // those with a record were judged with it
            let mut without = Vec::new();
            for ids in ids.chunks(PIECE) {
                let mut commands = redis::pipe();
                ids.iter().for_each(|id| _ = commands.cmd("HEXISTS").arg(&tasks).arg(id));
                let mut has = Reply::new("audit", self.inner.reads.pipe("audit", shard_of(queue), &commands).await?)?;
                for id in ids {
                    if has.int()? == 0 {
                        without.push(id.clone());
                    }
                }
            }
            self.judge(queue, &without, Some(tell), repair, audit).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Judges each of these ids at one instant.
    async fn judge(
        &self,
        queue: &QueueName,
        ids: &[Vec<u8>],
        tell: Option<Fault>,
        repair: bool,
        audit: &mut Audit,
    ) -> Result<(), StoreError> {
        for ids in ids.chunks(PIECE) {
            let mut call = self.inner.call(&script::AUDIT, queue, 0);
            call.arg(u8::from(repair));
            ids.iter().for_each(|id| _ = call.arg(id));
            let value = if repair { self.inner.persist(&call).await? } else { self.inner.read(&call).await? };
            let mut reply = Reply::new("audit", value)?;
            reply.int()?;
            while reply.left() > 0 {
                let (id, word) = (reply.bytes()?, reply.text()?);
                let Some(fault) = Fault::parse(&word) else { return reply.unexpected() };
                if tell.is_none_or(|tell| tell == fault) {
                    audit.found(queue, Some(&id), fault, String::new(), repair);
                }
            }
        }
        Ok(())
    }

    async fn books(&self, queue: &QueueName, repair: bool) -> Result<Books, StoreError> {
        let mut call = self.inner.call(&script::BOOKS, queue, 0);
        call.arg(u8::from(repair));
        let value = if repair { self.inner.persist(&call).await? } else { self.inner.read(&call).await? };
        let mut reply = Reply::new("books", value)?;
        reply.int()?;
        reply.int()?;
        let has_gate = reply.int()? == 1;
        let rev = u64::try_from(reply.int()?).unwrap_or(0);
        let open = reply.text()?.split_whitespace().map(str::to_owned).collect();
        let mut number = || reply.int();
        let (records, members, wanted, agenda, balance, retrying) =
            (number()?, number()?, number()?, number()?, number()?, number()?);
        let totals = reply.list()?.pairs()?;
        Ok(Books { has_gate, rev, open, records, members, wanted, agenda, balance, retrying, totals })
    }

    /// What scripts read of settings and webhooks is what these say.
    async fn audit_gate(
        &self,
        queue: &QueueName,
        books: &Books,
        repair: bool,
        audit: &mut Audit,
    ) -> Result<(), StoreError> {
        let Some(view) = self.describe(queue).await? else { return Ok(()) };
        let enabled = view.webhooks.iter().filter(|w| w.enabled).map(|w| w.id.as_str().to_owned());
        let unreadable = view.unreadable.iter().filter(|u| u.enabled).map(|u| u.id.clone());
        let enabled: BTreeSet<String> = enabled.chain(unreadable).collect();
        // under another rev somebody changed it in between
        if books.has_gate && (books.rev != view.rev || books.open == enabled) {
            return Ok(());
        }
        if repair {
            let change = self.change(queue, false, |view| {
                let hooks = view.webhooks.iter().map(|w| HookChange::Set(Box::new(w.clone()))).collect();
                Ok::<_, ()>(Change { settings: Some(view.queue.settings.clone()), pause: None, hooks })
            });
            change.await?;
        }
        let detail = if books.has_gate { "other webhooks are enabled" } else { "it is missing" };
        audit.found(queue, None, Fault::Gate, detail.to_owned(), repair);
        Ok(())
    }

    /// One step of a walk over a set or hash: the next cursor, and pairs.
    async fn scan(
        &self,
        queue: &QueueName,
        command: &'static str,
        part: &'static str,
        cursor: u64,
    ) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
        let mut commands = redis::pipe();
        commands.cmd(command).arg(self.inner.keys.of_part(queue, part)).arg(cursor).arg("COUNT").arg(PIECE);
        let answer = self.inner.reads.pipe("audit", shard_of(queue), &commands).await?;
        let mut reply = Reply::new("audit", answer)?.list()?;
        let next = u64::try_from(reply.int()?).unwrap_or(0);
        let mut items = reply.list()?;
        let mut all = Vec::with_capacity(items.left());
        while items.left() > 0 {
            all.push(items.bytes()?);
        }
        Ok((next, all))
    }

    /// Queues that have keys, whether they are listed or not.
    async fn queues_by_keys(&self) -> Result<BTreeSet<QueueName>, StoreError> {
        let (pattern, mut names) = (self.inner.keys.pattern(), BTreeSet::new());
        // of each primary, named by its first shard: where its walk stands
        let mut cursors: HashMap<u16, u64> = HashMap::new();
        loop {
            let commands = |shards: &[u16]| {
                let mut commands = redis::pipe();
                match cursors.get(&shards[0]) {
                    Some(0) => commands.cmd("PING"), // it has been all around
                    cursor => {
                        commands.cmd("SCAN").arg(cursor.unwrap_or(&0)).arg("MATCH").arg(&pattern);
                        commands.arg("COUNT").arg(SCAN_COUNT)
                    }
                };
                commands
            };
            for (shards, answer) in self.inner.reads.spread("audit", SCAN_WITHIN, commands).await {
                let mut reply = Reply::new("audit", answer?)?;
                if cursors.get(&shards[0]) == Some(&0) {
                    continue;
                }
                let mut reply = reply.list()?;
                cursors.insert(shards[0], u64::try_from(reply.int()?).unwrap_or(0));
                let mut keys = reply.list()?;
                while keys.left() > 0 {
                    names.extend(self.inner.keys.queue_of(&keys.bytes()?));
                }
            }
            if cursors.values().all(|cursor| *cursor == 0) {
                return Ok(names);
            }
        }
    }

    /// Whether there are records; a queue that was just removed has none.
    async fn has_data(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let books = self.books(queue, false).await?;
        Ok(books.records + books.members > 0)
    }
}
