//! Names and ids. Each is checked once, at the door; behind it a name cannot be wrong, nor forge a Redis key.

use std::{fmt, sync::Arc};

use uuid::Uuid;

/// Longest name or id, in bytes.
pub const MAX_NAME: usize = 128;

/// Why a text is not a name; the message states the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(&'static str);

const QUEUE_RULE: &str = "a queue name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or digit";
const ID_RULE: &str = "an id is 1 to 128 of A-Z a-z 0-9 . _ ~ : @ - and does not begin with a dot";

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $rule:ident, $first:expr, $rest:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses the text.
            ///
            /// # Errors
            /// States the rule that the text breaks.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                let (first, rest): (fn(u8) -> bool, fn(u8) -> bool) = ($first, $rest);
                let bytes = text.as_bytes();
                let fits = (1..=MAX_NAME).contains(&bytes.len());
                if fits && first(bytes[0]) && bytes[1..].iter().all(|b| rest(*b)) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError($rule))
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn is_queue_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"._-".contains(&b)
}

fn is_id_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"._~:@-".contains(&b)
}

name!(
    /// A queue: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
    QueueName, QUEUE_RULE, |b| b.is_ascii_alphanumeric(), is_queue_char
);
name!(
    /// A task: `[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]{0,127}`, case-sensitive, unique in its queue.
    TaskId, ID_RULE, |b| is_id_char(b) && b != b'.', is_id_char
);
name!(
    /// A webhook: the same alphabet as a task's id, unique in its queue.
    WebhookId, ID_RULE, |b| is_id_char(b) && b != b'.', is_id_char
);

impl TaskId {
    /// The id that the service gives when the client chose none.
    #[must_use]
    pub fn from_uid(uid: Uid) -> Self {
        Self(uid.to_string().into())
    }

    /// The UUID that this id is the canonical lower-case text of, if it is one.
    #[must_use]
    pub fn as_uuid(&self) -> Option<Uuid> {
        if self.0.len() != 36 {
            return None;
        }
        let uuid = Uuid::try_parse(&self.0).ok()?;
        (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == &*self.0).then_some(uuid)
    }
}

impl WebhookId {
    /// The id that the service gives when the client chose none.
    #[must_use]
    pub fn from_uid(uid: Uid) -> Self {
        Self(uid.to_string().into())
    }
}

/// Names one content of a task: new with each POST, PUT, and PATCH of payload or headers. Sent as `webhook-id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub Uuid);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule() {
        let longest = "q".repeat(128);
        for good in ["a", "9", "Orders", "a.b_c-d", &longest] {
            assert!(QueueName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "_a", "a b", "a/b", "é", "a{b}", "a:b", "a\0", &"q".repeat(129)] {
            assert!(QueueName::parse(bad).is_err(), "{bad}");
        }
        for good in ["order-1042", "_x", "~x", ":x", "@x", "-1", "1e3", "00123", "a..b"] {
            assert!(TaskId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../x", "user/234", "a%2Fb", "a b", "é", "%", "?", "#", ";v=1", "a\\b", "a,b"] {
            assert!(TaskId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_canonical_form_of_a_uuid_is_one() {
        let uuid = |t: &str| TaskId::parse(t).unwrap().as_uuid();
        assert!(uuid("01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60").is_some());
        assert!(uuid("01A22D7D-0de0-7c3a-9f00-1b2c3d4e5f60").is_none());
        assert!(uuid("01a22d7d0de07c3a9f001b2c3d4e5f60").is_none());
        assert!(uuid("order-1").is_none());
    }
}
