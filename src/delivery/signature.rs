//! The signature of a delivery: Standard Webhooks 1.0, symmetric (`v1`).

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::domain::secret::Secret;

/// The value of `webhook-signature`: one signature per secret, separated by spaces, so that receivers that know
/// either one accept the delivery while a secret rotates. The body is signed as the bytes that go out.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut value = String::new();
    for secret in secrets {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("HMAC takes a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        if !value.is_empty() {
            value.push(' ');
        }
        value.push_str("v1,");
        STANDARD.encode_string(mac.finalize().into_bytes(), &mut value);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

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
