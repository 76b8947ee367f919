//! Scripts called by hand, for what the store never asks of them in one process, and an ear at the bell.

use std::path::Path;

use deadpool_redis::redis::{self, Value, aio};
use duepost::{
    domain::id::Uid,
    store::{Claim, ClaimKind, Lease, keys::Keys},
};
use futures_util::StreamExt as _;

use crate::store_kit::Kit;

/// The source of a script as the store puts it together: `_lib` before it, and parts where a line `--+ part` names them.
pub fn source(script: &str) -> String {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/lua");
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(lua.join(format!("{name}.lua"))).expect("a script's file");
        text.lines().map(str::to_owned).collect()
    };
    let mut left: Vec<String> = [lines("_lib"), lines(script)].concat();
    left.reverse();
    let mut whole = String::new();
    while let Some(line) = left.pop() {
        match line.strip_prefix("--+ ") {
            Some(part) => left.extend(lines(part).into_iter().rev()),
            None => whole += &(line + "\n"),
        }
    }
    whole
}

/// Bytes as an argument.
pub fn b(arg: impl ToString) -> Vec<u8> {
    arg.to_string().into_bytes()
}

impl Kit {
    /// Calls a script with its bound and its arguments, as text also where it takes them as packed numbers: `enqueue` whether all
    /// or none, `settle` whether memory is full and, after the plain ends, the number of notes, `visit` all.
    pub async fn eval(&self, script: &str, bound: i64, args: &[Vec<u8>]) -> Value {
        let packed: &[(usize, usize)] = match script {
            "enqueue" => &[(0, 1)],
            "settle" => &[(0, 1), (2, 2)],
            "visit" => &[(0, 4), (1, 4), (2, 8), (4, 8), (6, 8), (3, 1), (5, 1)],
            _ => &[], // which argument, in how many bytes
        };
        let mut numbers = [self.clock.offset_ms().to_be_bytes(), bound.to_be_bytes()].concat();
        for (i, bytes) in packed {
            let number: i64 = std::str::from_utf8(&args[*i]).expect("text").parse().expect("a number");
            numbers.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
        }
        let keys = Keys::new("dp").of_queue(&self.queue);
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(source(script)).arg(keys.len()).arg(&keys[..]).arg(numbers).arg(self.queue.as_str());
        for (i, arg) in args.iter().enumerate().filter(|(i, _)| packed.iter().all(|(packed, _)| packed != i)) {
            if (script, i) == ("settle", 1) {
                cmd.arg(ends(arg));
            } else {
                cmd.arg(arg);
            }
        }
        cmd.query_async(&mut self.con.clone()).await.unwrap_or_else(|e| panic!("{script}: {e}"))
    }

    pub async fn ear(&self) -> Ear {
        let client = redis::Client::open(self.redis.url()).expect("a valid URL");
        let mut subscription = client.get_async_pubsub().await.expect("Redis answers");
        subscription.subscribe("dp:bell").await.expect("Redis answers");
        Ear(subscription)
    }
}

/// Hears the bell.
pub struct Ear(aio::PubSub);

impl Ear {
    /// What was rung since the last time.
    pub async fn heard(&mut self, kit: &Kit) -> Vec<String> {
        let _: i64 = kit.ask("PUBLISH", &[b"dp:bell", b"."]).await;
        let mut heard = Vec::new();
        let mut rings = self.0.on_message();
        loop {
            let ring: String = rings.next().await.expect("the subscription lives").get_payload().expect("text");
            if ring == "." {
                return heard;
            }
            heard.push(ring);
        }
    }
}

/// Tasks for `enqueue`: the client's id, uid, fingerprint, when.
pub fn rows(all_or_none: bool, tasks: &[(&str, Uid, u8, (&str, i64))]) -> Vec<Vec<u8>> {
    let mut args = vec![b(u8::from(all_or_none)), Vec::new()];
    for (id, uid, fingerprint, (kind, ms)) in tasks {
        args[1].push(u8::try_from(id.len()).expect("short"));
        args[1].extend_from_slice(id.as_bytes());
        args[1].extend_from_slice(&[1, 1 | 2, u8::from(*kind == "in")]);
        args[1].extend_from_slice(&ms.to_be_bytes());
        args[1].extend_from_slice(&[0; 8]);
        args.push([uid.0.as_bytes().as_slice(), &[*fingerprint; 16], b"1"].concat());
    }
    args
}

/// Plain ends as `settle` takes them: ids and rows as claimed, packed, then each row as it ends.
fn ends(mut plain: &[u8]) -> Vec<Vec<u8>> {
    let mut args = vec![Vec::new()];
    while let [id, ..] = plain {
        let (claimed, rest) = plain.split_at(1 + usize::from(*id) + 39);
        let (length, rest) = rest.split_at(4);
        let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
        let (end, rest) = rest.split_at(usize::try_from(length).expect("short"));
        args[0].extend_from_slice(claimed);
        args.push(end.to_vec());
        plain = rest;
    }
    args
}

/// A plain end: a first claim that is done. Length 1, id | row as claimed | length 4, row as it ends.
pub fn plain(claim: &Claim, won: &str, bytes: &str) -> Vec<u8> {
    let Lease { member, uid, fence, first, .. } = &claim.lease;
    let (kind, at) = first.expect("a first claim");
    let mut row = vec![1];
    row.extend_from_slice(&fence.to_be_bytes());
    row.push(u8::from(kind == ClaimKind::Pull));
    row.extend_from_slice(&[0; 7]); // reclaims, lapses, marks
    row.extend_from_slice(&at.0.to_be_bytes());
    row.extend_from_slice(uid.0.as_bytes());
    let length = u16::try_from(won.len()).expect("short").to_be_bytes();
    let end = [&row[..], &length, won.as_bytes(), bytes.as_bytes()].concat();
    let (id, long) = (u8::try_from(member.len()).expect("short"), u32::try_from(end.len()).expect("short"));
    [&[id][..], member, &row, &[0, 0], &long.to_be_bytes(), &end].concat()
}

/// How many claims a `visit` answers.
pub fn claims(answer: &Value) -> u32 {
    let Value::BulkString(facts) = &list(answer)[0] else { panic!("no facts: {answer:?}") };
    u32::from_be_bytes(facts[32..36].try_into().expect("four bytes"))
}

/// The items of an array.
pub fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        other => panic!("no array: {other:?}"),
    }
}

/// A word or a number.
pub fn word(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(n) => n.to_string(),
        other => panic!("no word: {other:?}"),
    }
}

/// The words of an array of words; a number behind them is none.
pub fn words(value: &Value) -> Vec<String> {
    list(value).iter().filter(|item| !matches!(item, Value::Int(_))).map(word).collect()
}

/// The first word of each item, or the item itself where it is one.
pub fn firsts(value: &Value) -> Vec<String> {
    let first = |item: &Value| if let Value::Array(items) = item { word(&items[0]) } else { word(item) };
    list(value).iter().map(first).collect()
}
