//! Reads what scripts answer. Whatever does not fit is a [`StoreError::Answer`], never a panic.

use deadpool_redis::redis::Value;

use super::error::StoreError;

/// An answer's items, taken from the front.
pub struct Reply {
    call: &'static str,
    items: std::vec::IntoIter<Value>,
}

impl Reply {
    /// Wraps an array.
    pub fn new(call: &'static str, value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(items) => Ok(Self { call, items: items.into_iter() }),
            _ => Err(StoreError::Answer { call, what: "an array" }),
        }
    }

    fn wrong<T>(&self, what: &'static str) -> Result<T, StoreError> {
        Err(StoreError::Answer { call: self.call, what })
    }

    /// How many items are left.
    pub fn left(&self) -> usize {
        self.items.len()
    }

    /// The next item as a list; a bare word is a list of one.
    pub fn list_or_word(&mut self) -> Result<Self, StoreError> {
        match self.items.next() {
            Some(Value::Array(items)) => Ok(Self { call: self.call, items: items.into_iter() }),
            Some(word @ Value::BulkString(_)) => Ok(Self { call: self.call, items: vec![word].into_iter() }),
            _ => self.wrong("a list or a word"),
        }
    }

    /// The next item as bytes.
    pub fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.items.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::SimpleString(text)) => Ok(text.into_bytes()),
            _ => self.wrong("a string"),
        }
    }

    /// The next item as text.
    pub fn text(&mut self) -> Result<String, StoreError> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes).or_else(|_| self.wrong("text"))
    }

    /// The next item as a whole number; text with a number counts, as scores and counters come so.
    pub fn int(&mut self) -> Result<i64, StoreError> {
        match self.items.next() {
            Some(Value::Int(n)) => Ok(n),
            Some(Value::Double(n)) => Ok(whole(n)),
            Some(Value::BulkString(bytes)) => match std::str::from_utf8(&bytes).ok().and_then(parse_number) {
                Some(n) => Ok(n),
                None => self.wrong("a number"),
            },
            _ => self.wrong("a number"),
        }
    }

    /// The same, or nil.
    pub fn number_or_none(&mut self) -> Result<Option<i64>, StoreError> {
        if matches!(self.items.as_slice().first(), Some(Value::Nil)) {
            self.items.next();
            return Ok(None);
        }
        self.int().map(Some)
    }

    /// Whether the next item is an error that says that another node may be the right one.
    pub fn is_elsewhere(&self) -> bool {
        self.items.as_slice().first().is_some_and(super::error::is_elsewhere)
    }

    /// The next item as a list.
    pub fn list(&mut self) -> Result<Self, StoreError> {
        match self.items.next() {
            Some(Value::Array(items)) => Ok(Self { call: self.call, items: items.into_iter() }),
            // of several commands, this one was refused
            Some(Value::ServerError(error)) => {
                Err(StoreError::Call { call: self.call, cause: error.into(), unknown: false })
            }
            _ => self.wrong("a list"),
        }
    }

    /// The rest as pairs of text, as HGETALL gives.
    pub fn pairs(mut self) -> Result<Vec<(String, String)>, StoreError> {
        let mut pairs = Vec::with_capacity(self.left() / 2);
        while self.left() > 0 {
            pairs.push((self.text()?, self.text()?));
        }
        Ok(pairs)
    }

    /// How many of the rest are there at all.
    pub fn count_present(self) -> i64 {
        self.items.map(|item| i64::from(!matches!(item, Value::Nil))).sum()
    }

    /// A word that no one expects here.
    pub fn unexpected<T>(&self) -> Result<T, StoreError> {
        self.wrong("a known word")
    }
}

/// Whole milliseconds of a score; out of range is clamped.
#[allow(clippy::cast_possible_truncation)] // `as` clamps a float
fn whole(n: f64) -> i64 {
    n as i64
}

/// A number as Redis writes it: `1796061300000`, `9e15`, `9000000000000000`.
pub fn parse_number(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| text.parse::<f64>().ok().map(whole))
}
