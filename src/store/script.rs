//! The scripts: one file per transition, `_lib.lua` put before each, and the parts that it asks for where it asks. EVALSHA, and EVAL where Redis does not know it.

use std::sync::LazyLock;

use deadpool_redis::redis::{self, Cmd, ErrorKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection};

/// One Lua script.
#[derive(Debug)]
pub struct Script {
    /// Its file's name without `.lua`; also the label of its metric.
    pub name: &'static str,
    source: String,
    sha: String,
}

impl Script {
    fn new(name: &'static str, source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { name, source, sha }
    }

    /// Starts a call on keys of one shard (or of all, where one Redis has them all); KEYS come next, then ARGV.
    pub fn call(&self, shard: u16, keys: &[String]) -> Call<'_> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(keys.len()).arg(keys);
        Call { script: self, shard, cmd }
    }
}

/// A call being put together.
pub struct Call<'a> {
    script: &'a Script,
    shard: u16,
    cmd: Cmd,
}

impl Call<'_> {
    /// Adds one ARGV.
    pub fn arg(&mut self, arg: impl redis::ToRedisArgs) -> &mut Self {
        self.cmd.arg(arg);
        self
    }

    /// The script's name.
    pub fn name(&self) -> &'static str {
        self.script.name
    }

    /// Where its keys are.
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// As it is sent first.
    pub fn by_hash(&self) -> &Cmd {
        &self.cmd
    }

    /// Sends it; after a restart or SCRIPT FLUSH the source goes along once.
    pub async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match self.cmd.query_async(connection).await {
            Err(e) if is_no_script(&e) => self.with_source().query_async(connection).await,
            answer => answer,
        }
    }

    /// Sends it to the node that the shard's slot is on its way to.
    pub async fn send_asking(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match asking(self.cmd.clone(), connection).await {
            Err(e) if is_no_script(&e) => asking(self.with_source(), connection).await,
            answer => answer,
        }
    }

    /// The same as EVAL.
    pub fn with_source(&self) -> Cmd {
        let mut eval = redis::cmd("EVAL");
        for (i, arg) in self.cmd.args_iter().enumerate() {
            match (i, arg) {
                (0, _) => {}
                (1, _) => {
                    eval.arg(&self.script.source);
                }
                (_, redis::Arg::Simple(bytes)) => {
                    eval.arg(bytes);
                }
                _ => {}
            }
        }
        eval
    }
}

/// Whether the script is not known there (any more).
pub fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// ASKING holds for the one command after it.
async fn asking(cmd: Cmd, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(cmd).ignore_errors();
    match both.query_async(connection).await? {
        Value::Array(mut answers) => answers.pop().unwrap_or(Value::Nil).extract_error(),
        other => Ok(other),
    }
}

/// Pieces that several scripts share. A script's line `--+ name` stands for one of them.
macro_rules! parts {
    ($($name:literal)+) => {
        const PARTS: &[(&str, &str)] = &[$(($name, include_str!(concat!("lua/", $name, ".lua"))),)+];
    };
}

parts! {
    "_again" "_clients" "_closely" "_come_to" "_earlier" "_ends" "_filled" "_fronts" "_has" "_holds" "_kept" "_notes" "_ready" "_ring" "_rows" "_states" "_taken" "_uid" "_upkeep" "_usual" "_wanted"
}

/// Puts the parts where a script's text names them.
fn put_together(text: &str, whole: &mut String) {
    for line in text.lines() {
        match line.strip_prefix("--+ ").map(|name| PARTS.iter().find(|(part, _)| *part == name)) {
            Some(Some((_, part))) => put_together(part, whole),
            _ => {
                whole.push_str(line);
                whole.push('\n');
            }
        }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$doc])* pub static $name: LazyLock<Script> = LazyLock::new(|| {
            let mut whole = include_str!("lua/_lib.lua").to_owned();
            put_together(include_str!(concat!("lua/", $file, ".lua")), &mut whole);
            Script::new($file, whole)
        });)*
    };
}

scripts! {
    /// – → scheduled.
    ENQUEUE = "enqueue";
    /// scheduled → active, and all else that is due.
    VISIT = "visit";
    /// active → an end, or back.
    SETTLE = "settle";
    /// active → active.
    RENEW = "renew";
    /// → cancelled.
    CANCEL = "cancel";
    /// PUT of a task.
    REPLACE = "replace";
    /// PATCH of a task.
    EDIT = "edit";
    /// `run` and replay.
    REVIVE = "revive";
    /// → gone, a piece at a time.
    PURGE = "purge";
    /// A queue → gone.
    DROP_QUEUE = "drop_queue";
    /// Settings, pause, webhooks.
    GATE = "gate";
    /// Reads a queue's set-up.
    DESCRIBE = "describe";
    /// Reads a task.
    GET = "get";
    /// Reads a page of tasks.
    LIST = "list";
    /// Reads a queue's figures.
    STATS = "stats";
    /// Whether ids stand where they should.
    AUDIT = "audit";
    /// Whether a queue's figures fit together.
    BOOKS = "books";
}

/// Reads all agendas; it has KEYS of its own and no `_lib.lua`.
pub static AGENDA: LazyLock<Script> =
    LazyLock::new(|| Script::new("agenda", include_str!("lua/agenda.lua").to_owned()));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_that_a_script_names_is_there() {
        let scripts = [
            &ENQUEUE,
            &VISIT,
            &SETTLE,
            &RENEW,
            &CANCEL,
            &REPLACE,
            &EDIT,
            &REVIVE,
            &PURGE,
            &DROP_QUEUE,
            &GATE,
            &DESCRIBE,
            &GET,
            &LIST,
            &STATS,
            &AUDIT,
            &BOOKS,
        ];
        for script in scripts {
            let left = script.source.lines().find(|line| line.starts_with("--+"));
            assert_eq!(left, None, "{}", script.name);
        }
    }
}
