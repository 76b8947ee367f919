//! The key that signs a webhook's deliveries, as Standard Webhooks writes it: `whsec_` and base64.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use subtle::ConstantTimeEq;

/// How the text of a secret begins.
const PREFIX: &str = "whsec_";
/// Length of the key in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Length of a key that the service makes, in bytes.
pub const SECRET_BYTES: usize = 32;

/// A signing key. It has no `Display`, and its `Debug` shows nothing of it, so that it cannot end up in a log.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

/// Why a text is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not in the form of Standard Webhooks.
    #[error("a secret is whsec_ followed by the key in base64 (standard alphabet, padded)")]
    Form,
    /// Too weak, or longer than a key needs to be.
    #[error("a secret is 24 to 64 bytes long (before base64)")]
    Length,
}

impl Secret {
    /// Reads `whsec_<base64>`.
    ///
    /// # Errors
    /// Another form, or a key that is not 24 to 64 bytes long.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let base64 = text.strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        Self::from_bytes(&STANDARD.decode(base64).map_err(|_| SecretError::Form)?)
    }

    /// Takes a key: [`SECRET_BYTES`] random ones for a new secret.
    ///
    /// # Errors
    /// Not 24 to 64 bytes long.
    pub fn from_bytes(key: &[u8]) -> Result<Self, SecretError> {
        if BYTES.contains(&key.len()) { Ok(Self(key.into())) } else { Err(SecretError::Length) }
    }

    /// The text form. Whoever calls this shows the secret: only the answers that make one, and the store.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// The key itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_keeps_its_text_and_hides_from_debug() {
        let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let secret = Secret::parse(text).unwrap();
        assert_eq!(secret.to_text(), text);
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(Secret::parse(&Secret::from_bytes(&[7; 32]).unwrap().to_text()), Secret::from_bytes(&[7; 32]));
        assert_ne!(Secret::from_bytes(&[7; 32]), Secret::from_bytes(&[8; 32]));
    }

    #[test]
    fn the_length_of_the_key_counts_not_that_of_the_text() {
        for (bytes, right) in [(0, false), (23, false), (24, true), (64, true), (65, false)] {
            assert_eq!(Secret::parse(&format!("whsec_{}", STANDARD.encode(vec![1; bytes]))).is_ok(), right, "{bytes}");
        }
        for text in ["", "whsec_", "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(Secret::parse(text).is_err(), "{text}");
        }
        for text in ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_M-KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_ü"] {
            assert_eq!(Secret::parse(text), Err(SecretError::Form), "{text}");
        }
    }
}
