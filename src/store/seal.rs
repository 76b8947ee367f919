//! Secrets at rest: a webhook's secrets and the values of its headers are sealed with a key that Redis never sees.
//!
//! ChaCha20-Poly1305 under a random nonce; queue and webhook are bound in, so that a sealed text cannot be moved to
//! another webhook. Each says which key made it, so that a wrong key is told from damage.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use sha2::{Digest, Sha256};

use super::record::RecordError;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Put before the key in what gives it its name.
const NAMING: &[u8] = b"duepost secret_key name\0";

/// Names a key without telling anything of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyName([u8; 4]);

impl KeyName {
    fn parse(text: &str) -> Option<Self> {
        u32::from_str_radix(text, 16).ok().filter(|_| text.len() == 8).map(|n| Self(n.to_be_bytes()))
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Seals with a key, or, without one, not at all.
#[derive(Clone, Default)]
pub struct Seal(Option<(KeyName, Arc<LessSafeKey>)>);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({:?})", self.name())
    }
}

impl Seal {
    /// Seals with this key from now on. What is not sealed stays readable, and is sealed when it is next written.
    #[must_use]
    pub fn with(key: &[u8; KEY_BYTES]) -> Self {
        let digest = Sha256::new().chain_update(NAMING).chain_update(key).finalize();
        let name = KeyName([digest[0], digest[1], digest[2], digest[3]]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).ok();
        Self(key.map(|key| (name, Arc::new(LessSafeKey::new(key)))))
    }

    /// Whether there is a key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// The name of the key, if there is one.
    #[must_use]
    pub fn name(&self) -> Option<KeyName> {
        self.0.as_ref().map(|(name, _)| *name)
    }

    /// Seals `text` for `owner`; `None` without a key, or if the system gives no randomness.
    pub(super) fn seal(&self, owner: &str, text: &str) -> Option<String> {
        let (name, key) = self.0.as_ref()?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(owner.as_bytes()), &mut sealed).ok()?;
        Some(format!("{name}:{}", STANDARD.encode([&nonce[..], &sealed].concat())))
    }

    /// Opens what [`Self::seal`] made for the same owner.
    pub(super) fn open(&self, owner: &str, sealed: &str) -> Result<String, RecordError> {
        const DAMAGED: RecordError = RecordError::Damaged("seal");
        let (sealed_with, rest) = sealed.split_once(':').ok_or(DAMAGED)?;
        let sealed_with = KeyName::parse(sealed_with).ok_or(DAMAGED)?;
        let Some((_, key)) = self.0.as_ref().filter(|(name, _)| *name == sealed_with) else {
            return Err(RecordError::Sealed { sealed_with, have: self.name() });
        };
        let mut bytes = STANDARD.decode(rest).map_err(|_| DAMAGED)?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or(DAMAGED)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| DAMAGED)?;
        let text = key.open_in_place(nonce, Aad::from(owner.as_bytes()), sealed).map_err(|_| DAMAGED)?;
        String::from_utf8(text.to_vec()).map_err(|_| DAMAGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_opens_for_the_same_owner() {
        let (seal, other) = (Seal::with(&[1; 32]), Seal::with(&[2; 32]));
        let sealed = seal.seal("q h", "canary").unwrap();
        assert!(!sealed.contains("canary"));
        assert_eq!(seal.open("q h", &sealed).as_deref(), Ok("canary"));
        assert_ne!(seal.seal("q h", "canary").unwrap(), sealed, "no nonce twice");
        assert_eq!(seal.open("q i", &sealed), Err(RecordError::Damaged("seal")));
        let have = other.name();
        let wrong = RecordError::Sealed { sealed_with: seal.name().unwrap(), have };
        assert_eq!(other.open("q h", &sealed), Err(wrong));
        assert!(wrong.to_string().contains(&have.unwrap().to_string()), "{wrong}");
        assert!(matches!(Seal::default().open("q h", &sealed), Err(RecordError::Sealed { have: None, .. })));
        assert_eq!(Seal::default().seal("q h", "x"), None);
    }

    #[test]
    fn what_was_changed_is_damaged_and_breaks_nothing() {
        let seal = Seal::with(&[1; 32]);
        let sealed = seal.seal("o", "canary").unwrap();
        for at in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert!(seal.open("o", &String::from_utf8(bytes).unwrap()).is_err(), "{at}");
            assert!(seal.open("o", &sealed[..at]).is_err(), "{at}");
        }
    }
}
