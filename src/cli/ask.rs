//! The commands that are calls of the API.

use std::{io::Read as _, path::Path};

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, value::RawValue};

use super::{
    CliError, Said,
    call::{Env, Reply, Service, Target, segment},
    show,
};

/// Most items that one page of a list has.
const PAGE: usize = 1000;

/// Commands that ask a running service.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Schedule a task
    Enqueue(Enqueue),
    /// Show a task with its attempts
    Get(One),
    /// Cancel a task: no further attempt will start
    Cancel(One),
    /// Make a task due now; revive a dead, cancelled or expired one
    Run(One),
    /// List the tasks of a queue in one state
    List {
        /// The queue
        queue: String,
        /// scheduled, active, completed, dead, cancelled or expired
        #[arg(long, default_value = "scheduled")]
        state: String,
        /// At most so many; 0 is all
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        #[allow(missing_docs)]
        target: Target,
    },
    /// Show the figures of a queue
    Stats {
        /// The queue
        queue: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        target: Target,
    },
    /// List the queues
    Queues {
        #[command(flatten)]
        #[allow(missing_docs)]
        target: Target,
    },
    /// List the webhooks of a queue with their health
    Webhooks {
        /// The queue
        queue: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        target: Target,
    },
}

/// One task.
#[derive(Debug, Args)]
pub struct One {
    /// The queue
    queue: String,
    /// The task
    id: String,
    #[command(flatten)]
    target: Target,
}

/// A new task.
#[derive(Debug, Args)]
pub struct Enqueue {
    /// The queue
    queue: String,
    /// The payload: JSON, sent byte for byte; `@FILE` is read from a file, `-` from standard input
    payload: String,
    /// An id of your own: to repeat the same call is safe then
    #[arg(long)]
    id: Option<String>,
    /// How long from now, as 30s, 5m, 1h30m, 7d
    #[arg(long, conflicts_with = "at")]
    delay: Option<String>,
    /// When, as 2026-12-01T09:00:00+01:00
    #[arg(long, value_name = "INSTANT")]
    at: Option<String>,
    /// No attempt starts later than this, counted from now
    #[arg(long, value_name = "DURATION")]
    expires_after: Option<String>,
    /// How long an attempt may take
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Failed attempts before the task is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// A header of the delivery, as x-tenant=acme; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,
    #[command(flatten)]
    target: Target,
}

impl Enqueue {
    /// The body; the payload goes into it as it is.
    fn body(&self, cwd: &Path) -> Result<String, CliError> {
        let unreadable = |e: std::io::Error| CliError::Payload(format!("cannot be read: {e}"));
        let payload = match (self.payload.as_str(), self.payload.strip_prefix('@')) {
            ("-", _) => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map_err(unreadable)?;
                text
            }
            (_, Some(file)) => std::fs::read_to_string(cwd.join(file)).map_err(unreadable)?,
            (text, None) => text.to_owned(),
        };
        let raw: Box<RawValue> = serde_json::from_str(payload.trim_matches([' ', '\t', '\r', '\n']))
            .map_err(|e| CliError::Payload(format!("is not JSON: {e}; a text is written in quotes, as '\"text\"'")))?;
        let mut fields = Map::new();
        let texts = [
            ("id", &self.id),
            ("delay", &self.delay),
            ("run_at", &self.at),
            ("expires_after", &self.expires_after),
            ("timeout", &self.timeout),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                fields.insert(name.to_owned(), text.as_str().into());
            }
        }
        if let Some(most) = self.max_attempts {
            fields.insert("retry".to_owned(), serde_json::json!({"max_attempts": most}));
        }
        let mut headers = Map::new();
        for header in &self.headers {
            let (name, value) = header.split_once('=').ok_or(CliError::Header)?;
            if headers.insert(name.to_owned(), value.into()).is_some() {
                return Err(CliError::Header);
            }
        }
        if !headers.is_empty() {
            fields.insert("headers".to_owned(), headers.into());
        }
        let mut body = String::from("{\"payload\":");
        body.push_str(raw.get());
        for (name, value) in fields {
            body.push_str(&format!(",{}:{value}", Value::from(name)));
        }
        body.push('}');
        Ok(body)
    }
}

impl Ask {
    /// Whether the answer is wanted as JSON.
    #[must_use]
    pub const fn json(&self) -> bool {
        match self {
            Self::Enqueue(Enqueue { target, .. })
            | Self::Get(One { target, .. })
            | Self::Cancel(One { target, .. })
            | Self::Run(One { target, .. })
            | Self::List { target, .. }
            | Self::Stats { target, .. }
            | Self::Queues { target }
            | Self::Webhooks { target, .. } => target.json,
        }
    }

    /// Asks, and says what came of it.
    ///
    /// # Errors
    /// See [`CliError`].
    pub fn run(&self, env: &Env, cwd: &Path) -> Result<Said, CliError> {
        let to = |target: &Target| Service::of(target, env, cwd);
        let of_task = |one: &One| format!("/queues/{}/tasks/{}", segment(&one.queue), segment(&one.id));
        let done = |target: &Target, reply: Reply, show: &dyn Fn(&Value) -> Said| match target.json {
            true => Ok(reply.text + "\n"),
            false => Ok(show(&reply.json()?)),
        };
        match self {
            Self::Enqueue(new) => {
                let path = format!("/queues/{}/tasks", segment(&new.queue));
                let reply = to(&new.target)?.call(Method::POST, &path, Some(new.body(cwd)?))?;
                let word = if reply.status == 201 { "scheduled" } else { "was there already" };
                done(&new.target, reply, &|task| show::changed(task, word))
            }
            Self::Get(one) => done(&one.target, to(&one.target)?.call(Method::GET, &of_task(one), None)?, &show::task),
            Self::Cancel(one) => {
                let reply = to(&one.target)?.call(Method::DELETE, &of_task(one), None)?;
                let word = match reply.status {
                    202 => "is being cancelled: the attempt under way may still succeed, no further one will start",
                    _ => "cancelled",
                };
                done(&one.target, reply, &|task| show::changed(task, word))
            }
            Self::Run(one) => {
                let reply = to(&one.target)?.call(Method::POST, &format!("{}/run", of_task(one)), None)?;
                done(&one.target, reply, &|task| show::changed(task, "is due now"))
            }
            Self::List { queue, state, limit, target } => {
                let path = format!("/queues/{}/tasks?state={}", segment(queue), segment(state));
                list(&to(target)?, target, &path, '&', *limit, show::TASKS)
            }
            Self::Stats { queue, target } => {
                let path = format!("/queues/{}/stats", segment(queue));
                done(target, to(target)?.call(Method::GET, &path, None)?, &show::figures)
            }
            Self::Queues { target } => list(&to(target)?, target, "/queues", '?', 0, show::QUEUES),
            Self::Webhooks { queue, target } => {
                let path = format!("/queues/{}/webhooks", segment(queue));
                list(&to(target)?, target, &path, '?', 0, show::WEBHOOKS)
            }
        }
    }
}

/// A list to its end, or to so many items.
fn list(
    service: &Service,
    target: &Target,
    path: &str,
    join: char,
    limit: usize,
    columns: &[show::Column],
) -> Result<Said, CliError> {
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let wanted = if limit == 0 { PAGE } else { (limit - items.len()).min(PAGE) };
        let after = cursor.map(|cursor| format!("&cursor={}", segment(&cursor))).unwrap_or_default();
        let mut page = service.call(Method::GET, &format!("{path}{join}limit={wanted}{after}"), None)?.json()?;
        let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) else {
            return Err(CliError::Answer("it is not a list".to_owned()));
        };
        items.extend(more);
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || (limit > 0 && items.len() >= limit) {
            break;
        }
    }
    if target.json {
        return Ok(format!("{}\n", serde_json::json!({"items": items, "next_cursor": cursor})));
    }
    let more = if cursor.is_some() { "… and more; see --limit\n" } else { "" };
    Ok(show::table(columns, &items) + more)
}
