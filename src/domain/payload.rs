//! The payload: opaque bytes from socket to socket. It is checked to be JSON once, and never parsed into a tree.

use bytes::Bytes;

/// Deepest nesting of arrays and objects in a payload.
pub const MAX_DEPTH: usize = 128;

/// One JSON value, byte for byte as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Bytes);

/// Why a JSON value is not taken as a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Bigger than the service's limit.
    #[error("the payload has {size} bytes; at most {max} are allowed")]
    TooLarge {
        /// Bytes of the payload.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Nested too deep.
    #[error("the payload is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl Payload {
    /// Takes bytes that a JSON parser has accepted as one value.
    ///
    /// # Errors
    /// Too large or nested too deep.
    pub fn new(json: Bytes, max: usize) -> Result<Self, PayloadError> {
        if json.len() > max {
            return Err(PayloadError::TooLarge { size: json.len(), max });
        }
        // what is short cannot be deep; counting is much cheaper than following, and enough for nearly all
        let opening = || json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
        if json.len() > 2 * MAX_DEPTH && opening() > MAX_DEPTH && depth(&json) > MAX_DEPTH {
            return Err(PayloadError::TooDeep);
        }
        Ok(Self(json))
    }

    /// A payload that was checked before, read back from the store.
    #[must_use]
    pub fn stored(json: Bytes) -> Self {
        Self(json)
    }

    /// The bytes as sent.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// The deepest nesting of a valid JSON text.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c032_depth_counts_brackets_outside_strings() {
        assert_eq!(depth(b"1"), 0);
        assert_eq!(depth(br#"{"a":[1,{"b":"[[[\"[{"}]}"#), 3);
        let nested = |n: usize| Bytes::from(format!("{}{}", "[".repeat(n), "]".repeat(n)));
        assert!(Payload::new(nested(128), 1 << 20).is_ok());
        assert_eq!(Payload::new(nested(129), 1 << 20), Err(PayloadError::TooDeep));
        assert_eq!(Payload::new(nested(10), 19), Err(PayloadError::TooLarge { size: 20, max: 19 }));
    }
}
