//! Reads a request's JSON object field by field, and remembers every fault with its path.
//!
//! The text is parsed once; values stay slices of it, so a payload is neither copied nor built into a tree, and no
//! nesting can overflow a stack. What nobody asked for when [`Object::finish`] is called is an unknown field.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::problem::{Fault, Problem};

/// Fields of one object that are looked at.
const FIELDS_MAX: usize = 200;
/// So many names are asked for as a rule.
const FIELDS_USUAL: usize = 16;
/// Characters of a foreign name that an answer repeats.
const NAME_SHOWN: usize = 128;

/// What a request says about a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given<T> {
    /// Nothing.
    Absent,
    /// `null`, where that means the default.
    Null,
    /// A value.
    Value(T),
}

impl<T> Given<T> {
    /// Puts it over what stands.
    pub fn over(self, slot: &mut T, default: T) {
        match self {
            Self::Absent => {}
            Self::Null => *slot = default,
            Self::Value(value) => *slot = value,
        }
    }
}

/// An object of a request.
pub struct Object<'a> {
    path: String,
    entries: Vec<(Cow<'a, str>, &'a str)>,
    known: Vec<&'static str>,
    faults: Vec<Fault>,
}

/// Reads a whole body as one object.
///
/// # Errors
/// Not JSON, not an object, or any fault that `read` or this found.
pub fn decode<'a, T>(json: &'a str, read: impl FnOnce(&mut Object<'a>) -> Option<T>) -> Result<T, Problem> {
    let mut object = Object::parse(json)?;
    let value = read(&mut object);
    let faults = object.finish();
    match value {
        Some(value) if faults.is_empty() => Ok(value),
        _ => Err(Problem::fields(faults)),
    }
}

impl<'a> Object<'a> {
    fn parse(json: &'a str) -> Result<Self, Problem> {
        let entries = serde_json::from_str::<Entries<'a>>(json).map_err(|error| {
            if error.is_data() {
                Problem::invalid("the body must be a JSON object")
            } else {
                Problem::invalid(format!("the body is not valid JSON: {error}"))
            }
        })?;
        Ok(Self::new(String::new(), entries))
    }

    fn new(path: String, found: Entries<'a>) -> Self {
        let mut object = Self { path, entries: found.0, known: Vec::with_capacity(FIELDS_USUAL), faults: Vec::new() };
        let mut at = 1;
        while let Some((name, _)) = object.entries.get(at) {
            if object.entries[..at].iter().any(|(other, _)| other == name) {
                let (name, _) = object.entries.remove(at);
                object.fault(&name, "is given twice");
            } else {
                at += 1;
            }
        }
        object
    }

    fn path_of(&self, name: &str) -> String {
        let name: String = name.chars().take(NAME_SHOWN).collect();
        if self.path.is_empty() { name } else { format!("{}.{name}", self.path) }
    }

    /// Remembers that a field is wrong.
    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        self.faults.push(Fault::new(self.path_of(name), message));
    }

    /// The value's JSON text as it stands in the body.
    pub fn raw(&mut self, name: &'static str) -> Option<&'a str> {
        self.known.push(name);
        let at = self.entries.iter().position(|(entry, _)| entry == name)?;
        Some(self.entries.swap_remove(at).1)
    }

    /// A field that may be left out, and may be `null` only where `null` says so.
    pub fn given<T>(
        &mut self,
        name: &'static str,
        null: bool,
        read: impl FnOnce(&'a str) -> Result<T, String>,
    ) -> Given<T> {
        match self.raw(name) {
            None => Given::Absent,
            Some("null") if null => Given::Null,
            Some("null") => {
                self.fault(name, "must not be null: leave it out instead");
                Given::Absent
            }
            Some(raw) => match read(raw) {
                Ok(value) => Given::Value(value),
                Err(message) => {
                    self.fault(name, message);
                    Given::Absent
                }
            },
        }
    }

    /// A field that may be left out.
    pub fn optional<T>(&mut self, name: &'static str, read: impl FnOnce(&'a str) -> Result<T, String>) -> Option<T> {
        match self.given(name, false, read) {
            Given::Value(value) => Some(value),
            Given::Absent | Given::Null => None,
        }
    }

    /// A field that must be there.
    pub fn required<T>(&mut self, name: &'static str, read: impl FnOnce(&'a str) -> Result<T, String>) -> Option<T> {
        if !self.has(name) {
            self.known.push(name);
            self.fault(name, "is required");
            return None;
        }
        self.optional(name, read)
    }

    /// Whether the field is there and was not asked for yet.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(entry, _)| entry == name)
    }

    /// Whether the field is there, is `null`, and was not asked for yet.
    #[must_use]
    pub fn is_null(&self, name: &str) -> bool {
        self.entries.iter().any(|(entry, raw)| entry == name && *raw == "null")
    }

    /// A field that holds an object; its faults are remembered here.
    pub fn object<T>(
        &mut self,
        name: &'static str,
        null: bool,
        read: impl FnOnce(&mut Object<'a>) -> Option<T>,
    ) -> Given<T> {
        let mut within = Vec::new();
        let path = if self.has(name) { self.path_of(name) } else { String::new() };
        let given = self.given(name, null, |raw| {
            let entries = serde_json::from_str::<Entries<'a>>(raw).map_err(|_| wrong(raw, "an object"))?;
            let mut object = Object::new(path, entries);
            let value = read(&mut object);
            within = object.finish();
            Ok(value)
        });
        self.faults.append(&mut within);
        match given {
            Given::Value(Some(value)) => Given::Value(value),
            Given::Value(None) | Given::Absent => Given::Absent,
            Given::Null => Given::Null,
        }
    }

    /// All that is wrong, unknown fields included.
    fn finish(mut self) -> Vec<Fault> {
        if !self.entries.is_empty() {
            let known = self.known.join(", ");
            for (name, _) in std::mem::take(&mut self.entries) {
                self.fault(&name, format!("is not a field here; known are {known}"));
            }
        }
        self.faults
    }
}

/// "must be a string, not a number".
pub fn wrong(raw: &str, wanted: &str) -> String {
    let is = match raw.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    };
    if wanted == is { format!("must be {wanted} that can be read") } else { format!("must be {wanted}, not {is}") }
}

/// A field's text.
///
/// # Errors
/// Something else than a string.
pub fn text(raw: &str) -> Result<Cow<'_, str>, String> {
    let inner = raw.strip_prefix('"').and_then(|r| r.strip_suffix('"')).ok_or_else(|| wrong(raw, "a string"))?;
    if inner.contains('\\') {
        return serde_json::from_str(raw).map(Cow::Owned).map_err(|_| wrong(raw, "a string"));
    }
    Ok(Cow::Borrowed(inner))
}

/// The items of a list, at most `max`.
///
/// # Errors
/// Something else than a list, or a longer one.
pub fn list(raw: &str, max: usize) -> Result<Vec<&str>, String> {
    if !raw.starts_with('[') {
        return Err(wrong(raw, "a list"));
    }
    let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| wrong(raw, "a list"))?;
    if items.len() > max {
        return Err(format!("has {} items; at most {max} are allowed", items.len()));
    }
    Ok(items.into_iter().map(RawValue::get).collect())
}

/// The fields of an object whose names are free, in their order, at most `max` (the rest is not looked at).
///
/// # Errors
/// Something else than an object.
pub fn map(raw: &str, max: usize) -> Result<Vec<(Cow<'_, str>, &str)>, String> {
    let entries: Entries<'_> = serde_json::from_str(raw).map_err(|_| wrong(raw, "an object"))?;
    Ok(entries.0.into_iter().take(max).collect())
}

struct Entries<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some(name) = map.next_key_seed(Name)? {
                    let value: &RawValue = map.next_value()?;
                    if entries.len() < FIELDS_MAX {
                        entries.push((name, value.get()));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A field's name, borrowed where it has no escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
