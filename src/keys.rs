//! API keys: who may call. Only their SHA-256 is kept, in a file or the environment, so neither gives a key away.
//!
//! A key is `dp_` and 256 random bits; that many need no slow hash. Every presented key is compared with every entry in
//! constant time, so the time of an answer says nothing about how close a guess was. Neighbours: `config` reads the
//! entries, `http` asks [`Keys::verify`].

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a key may do; the words are those of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Schedule, change and cancel tasks.
    Produce,
    /// Claim and settle tasks.
    Consume,
    /// Read anything.
    Read,
    /// Everything.
    Admin,
}

impl Role {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Produce, Self::Consume, Self::Read, Self::Admin];

    /// The API's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::parse(word).ok_or("is none of produce, consume, read, admin")
    }
}

/// A pattern of queue names in which `*` stands for any run of characters, also an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    fn parse(text: &str) -> Option<Self> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'*' | b'.' | b'_' | b'-');
        ((1..=128).contains(&text.len()) && text.bytes().all(fine)).then(|| Self(text.to_owned()))
    }

    /// `*`.
    #[must_use]
    pub fn every() -> Self {
        Self("*".to_owned())
    }

    /// Whether any name at all fits.
    #[must_use]
    pub fn is_every(&self) -> bool {
        self.0.bytes().all(|b| b == b'*')
    }

    /// Whether the name of a queue fits. Linear in the name for each `*`.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == name };
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(mut left) = name.strip_prefix(head).and_then(|n| n.strip_suffix(tail)) else { return false };
        for part in middle.split('*') {
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

impl FromStr for Glob {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("is not 1 to 128 of A-Z a-z 0-9 . _ - and *")
    }
}

/// One entry: who a key belongs to and what it may do.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// For logs; 1 to 64 of `A-Z a-z 0-9 . _ -`. Two keys may share one while they are exchanged.
    pub name: String,
    /// At least one.
    pub roles: Vec<Role>,
    /// At least one; `*` is every queue.
    pub queues: Vec<Glob>,
    sha256: [u8; 32],
}

/// Without the hash.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, roles, queues, sha256: _ } = self;
        f.debug_struct("Key").field("name", name).field("roles", roles).field("queues", queues).finish_non_exhaustive()
    }
}

/// Why entries cannot be read. No text of the source is repeated: it may be a key pasted into the wrong place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Not TOML, or not JSON.
    #[error("cannot be read as {form}, see line {line}")]
    Syntax {
        /// `TOML` or `JSON`.
        form: &'static str,
        /// Counted from 1.
        line: usize,
    },
    /// Something else than a list of entries.
    #[error("is not {0}")]
    Shape(&'static str),
    /// An entry is wrong.
    #[error("has a wrong entry (number {number}): {wrong}")]
    Entry {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        wrong: &'static str,
    },
    /// A source without entries: to go on would mean to listen without keys.
    #[error("has no entries; make one with `duepost key new`")]
    Empty,
}

/// All keys that are let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys(Vec<Arc<Key>>);

impl Keys {
    /// Reads a keys file: `[[key]]` with `name`, `sha256`, `roles`, and `queues` (default `["*"]`).
    ///
    /// # Errors
    /// See [`KeysError`].
    pub fn from_toml(text: &str) -> Result<Self, KeysError> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let at = e.span().map_or(0, |span| span.start);
            let line = 1 + text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
            KeysError::Syntax { form: "TOML", line }
        })?;
        let shape = KeysError::Shape("a list of [[key]] tables and nothing else");
        if table.keys().any(|name| name != "key") {
            return Err(shape);
        }
        match table.get("key") {
            None => Err(KeysError::Empty),
            Some(list) => match serde_json::to_value(list) {
                Ok(Value::Array(entries)) => Self::from_entries(&entries),
                _ => Err(shape),
            },
        }
    }

    /// Reads a JSON list of entries.
    ///
    /// # Errors
    /// See [`KeysError`].
    pub fn from_json(text: &str) -> Result<Self, KeysError> {
        match serde_json::from_str(text) {
            Ok(Value::Array(entries)) => Self::from_entries(&entries),
            Ok(_) => Err(KeysError::Shape("a JSON list of entries")),
            Err(e) => Err(KeysError::Syntax { form: "JSON", line: e.line() }),
        }
    }

    fn from_entries(entries: &[Value]) -> Result<Self, KeysError> {
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let wrong = |wrong| KeysError::Entry { number: at + 1, wrong };
            let key = Key::parse(entry).map_err(wrong)?;
            if keys.iter().any(|k| k.sha256 == key.sha256) {
                return Err(wrong("its sha256 was there before"));
            }
            keys.push(Arc::new(key));
        }
        if keys.is_empty() { Err(KeysError::Empty) } else { Ok(Self(keys)) }
    }

    /// These and those of another source; an entry in both counts once, as it is here.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for key in other.0 {
            if self.0.iter().all(|k| k.sha256 != key.sha256) {
                self.0.push(key);
            }
        }
        self
    }

    /// The entry of a presented key. Always looks at all entries.
    #[must_use]
    pub fn verify(&self, presented: &str) -> Option<&Arc<Key>> {
        let hash: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.sha256.ct_eq(&hash)) {
                found = Some(key);
            }
        }
        found
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// SHA-256 of nothing: what a script writes that hashed an unset variable.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

impl Key {
    /// Whether it has this role, or may do everything.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|own| matches!(own, Role::Admin) || *own == role)
    }

    /// Whether a queue of this name, there or not, is among its own.
    #[must_use]
    pub fn reaches(&self, queue: &str) -> bool {
        self.queues.iter().any(|glob| glob.fits(queue))
    }

    /// Whether every queue is its own.
    #[must_use]
    pub fn reaches_all(&self) -> bool {
        self.queues.iter().any(Glob::is_every)
    }

    fn parse(entry: &Value) -> Result<Self, &'static str> {
        let entry = entry.as_object().ok_or("it is not an object with name, sha256, roles and queues")?;
        if entry.keys().any(|k| !["name", "sha256", "roles", "queues"].contains(&k.as_str())) {
            return Err("it has a field other than name, sha256, roles and queues");
        }
        let name = entry.get("name").and_then(Value::as_str).filter(|n| is_name(n));
        let name = name.ok_or("its name is not 1 to 64 of A-Z a-z 0-9 . _ -")?.to_owned();
        let sha256 = entry.get("sha256").and_then(Value::as_str).and_then(unhex);
        let sha256 = sha256.ok_or("its sha256 is not 64 hexadecimal digits")?;
        if hex(&sha256) == NOTHING {
            return Err("its sha256 is that of an empty text");
        }
        let roles =
            list(entry, "roles", Role::parse).ok_or("its roles are not a list of produce, consume, read, admin")?;
        let queues = match entry.contains_key("queues") {
            true => {
                list(entry, "queues", Glob::parse).ok_or("its queues are not a list of names, in which * may stand")?
            }
            false => vec![Glob::every()],
        };
        Ok(Self { name, roles, queues, sha256 })
    }
}

/// A field as a list of at least one item, all of them right.
fn list<T>(entry: &Map<String, Value>, field: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let items = entry.get(field)?.as_array().filter(|items| !items.is_empty())?;
    items.iter().map(|item| item.as_str().and_then(&parse)).collect()
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// A new key and its entry, as `duepost key new` prints them: the only moment at which the key itself is seen.
/// `None` if the name is not one, or it could do nothing.
#[must_use]
pub fn create(name: &str, roles: &[Role], queues: &[Glob], random: [u8; 32]) -> Option<Value> {
    if !is_name(name) || roles.is_empty() || queues.is_empty() {
        return None;
    }
    let key = format!("dp_{}", URL_SAFE_NO_PAD.encode(random));
    let sha256 = hex(&Sha256::digest(key.as_bytes()));
    let roles: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    let queues: Vec<&str> = queues.iter().map(|glob| glob.0.as_str()).collect();
    let entry = serde_json::json!({"name": name, "sha256": sha256, "roles": roles, "queues": queues});
    Some(serde_json::json!({"key": key, "entry": entry}))
}

#[cfg(test)]
mod tests;
