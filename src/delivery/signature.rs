//! The signature of a delivery: Standard Webhooks 1.0, symmetric (`v1`).

use std::{fmt, fmt::Write as _, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::domain::secret::Secret;

/// Secrets made ready to sign, once and not with each call. Cheap to clone. It has no `Debug`: it is as good as they are.
#[derive(Clone)]
pub struct Signers(Arc<[Hmac<Sha256>]>);

impl Signers {
    /// Takes the secrets in the order in which they sign.
    #[must_use]
    pub fn new(secrets: &[Secret]) -> Self {
        let signer = |secret: &Secret| Hmac::new_from_slice(secret.bytes()).expect("HMAC takes a key of any length");
        Self(secrets.iter().map(signer).collect())
    }

    /// Appends the value of `webhook-signature`: one signature per secret, separated by spaces, so that receivers that know
    /// either one accept the delivery while a secret rotates. The body is signed as the bytes that go out.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8], value: &mut String) {
        for (i, signer) in self.0.iter().enumerate() {
            let mut signing = Signing(signer.clone());
            let _ = write!(signing, "{id}.{timestamp}."); // it takes whatever is written
            signing.0.update(body);
            value.push_str(if i == 0 { "v1," } else { " v1," });
            STANDARD.encode_string(signing.0.finalize().into_bytes(), value);
        }
    }
}

/// Signs what is written to it.
struct Signing(Hmac<Sha256>);

impl fmt::Write for Signing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut value = String::new();
        Signers::new(secrets).sign(id, timestamp, body, &mut value);
        value
    }

    #[test]
    fn s13_the_official_library_computes_the_same() {
        let secret = Secret::from_bytes(&[9; 32]).unwrap();
        let official = standardwebhooks::Webhook::new(&secret.to_text()).unwrap();
        for body in ["", "{}", "{\"name\": \"Zoë\", \"n\": 1.0}\n"] {
            let theirs = official.sign("msg_1", 1_796_061_300, body.as_bytes()).unwrap();
            assert_eq!(sign(std::slice::from_ref(&secret), "msg_1", 1_796_061_300, body.as_bytes()), theirs);
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let value = sign(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(value, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_secrets_sign_side_by_side_while_one_is_rotated_out() {
        let [old, new] = [Secret::from_bytes(&[1; 24]).unwrap(), Secret::from_bytes(&[2; 64]).unwrap()];
        let alone = |secret: &Secret| sign(std::slice::from_ref(secret), "id", 1, b"x");
        assert_eq!(sign(&[new.clone(), old.clone()], "id", 1, b"x"), format!("{} {}", alone(&new), alone(&old)));
    }
}
