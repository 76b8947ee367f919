use super::*;

fn made(name: &str, random: [u8; 32]) -> Option<Value> {
    create(name, &[Role::Admin], &[Glob::every()], random)
}

fn entry(text: &str) -> String {
    format!(r#"[{{"name": "a", "sha256": "{}", {text}}}]"#, hex(&Sha256::digest("secret")))
}

#[test]
fn a_created_key_is_let_in_and_no_other() {
    let made = made("deploy", [7; 32]).unwrap();
    let key = made["key"].as_str().unwrap();
    assert!(key.starts_with("dp_") && key.len() == 3 + 43, "256 bits: {key}");
    let keys = Keys::from_json(&format!("[{}]", made["entry"])).unwrap();

    assert_eq!(keys.verify(key).map(|k| k.name.as_str()), Some("deploy"));
    for wrong in ["", "dp_", &key[..key.len() - 1], &format!("{key} "), &key.to_lowercase()] {
        assert_eq!(keys.verify(wrong), None, "{wrong}");
    }
    assert!(create("two words", &[Role::Admin], &[Glob::every()], [7; 32]).is_none());
}

#[test]
fn every_entry_is_looked_at_and_two_keys_live_at_once() {
    let (old, new) = (made("a", [1; 32]).unwrap(), made("a", [2; 32]).unwrap());
    let keys = Keys::from_json(&format!("[{},{}]", old["entry"], new["entry"])).unwrap();
    for made in [old, new] {
        assert!(keys.verify(made["key"].as_str().unwrap()).is_some());
    }
}

#[test]
fn toml_and_json_say_the_same() {
    let hash = hex(&Sha256::digest("secret"));
    let toml = format!("[[key]]\nname = \"a\"\nsha256 = \"{}\"\nroles = [\"read\"]\n", hash.to_uppercase());
    let keys = Keys::from_toml(&toml).unwrap();
    assert_eq!(keys, Keys::from_json(&entry(r#""roles": ["read"]"#)).unwrap());
    let key = keys.verify("secret").unwrap();
    assert_eq!((key.roles.as_slice(), key.queues[0].fits("any")), ([Role::Read].as_slice(), true));
    assert_eq!(keys.clone().and(keys.clone()).count(), 1, "one key from two sources");
}

#[test]
fn what_is_not_an_entry_is_refused_without_being_repeated() {
    let good = hex(&Sha256::digest("x"));
    for bad in [
        "",
        "[]",
        "{}",
        "dp_canary",
        r#"["dp_canary"]"#,
        r#"[{"name": "a", "sha256": "dp_canary", "roles": ["admin"]}]"#,
        &format!(r#"[{{"name": "a", "sha256": "{NOTHING}", "roles": ["admin"]}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}"}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}", "roles": []}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}", "roles": ["dp_canary"]}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}", "roles": ["admin"], "queues": []}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}", "roles": ["admin"], "queues": ["a b"]}}]"#),
        &format!(r#"[{{"name": "dp canary", "sha256": "{good}", "roles": ["admin"]}}]"#),
        &format!(r#"[{{"name": "a", "sha256": "{good}", "roles": ["admin"], "dp_canary": 1}}]"#),
        &format!(
            r#"[{{"name": "a", "sha256": "{good}", "roles": ["admin"]}}, {{"name": "b", "sha256": "{good}", "roles": ["read"]}}]"#
        ),
    ] {
        let told = Keys::from_json(bad).expect_err(bad).to_string();
        assert!(!told.contains("canary"), "{told}");
    }
    for bad in
        ["", "dp_canary", "key = 1", "key = [\"dp_canary\"]", "[[keys]]\nname = \"a\"", "[[key]]\nname = dp_canary"]
    {
        let told = Keys::from_toml(bad).expect_err(bad).to_string();
        assert!(!told.contains("canary"), "{told}");
    }
    assert_eq!(Keys::from_toml("\n\n[[key]]\nname = x"), Err(KeysError::Syntax { form: "TOML", line: 4 }));
}

#[test]
fn debug_shows_no_hash() {
    let keys = Keys::from_json(&entry(r#""roles": ["admin"]"#)).unwrap();
    assert!(!format!("{keys:?}").contains("sha256"));
}

#[test]
fn globs_know_only_the_star() {
    let fits = |glob: &str, name: &str| Glob::parse(glob).unwrap().fits(name);
    for (glob, yes, no) in [
        ("*", &["a", "orders"][..], &[][..]),
        ("orders", &["orders"], &["order", "orders2", "Orders"]),
        ("orders-*", &["orders-", "orders-eu"], &["orders", "xorders-eu"]),
        ("*.eu", &["a.eu", ".eu"], &["a.eux", "aeu"]),
        ("a*b*c", &["abc", "a1b2c", "abbcc", "abcbc"], &["ab", "acb", "abcd", "ac"]),
        ("a*a", &["aa", "aba"], &["a"]),
        ("a**b", &["ab", "axb"], &["a"]),
        ("*a*a*", &["aa", "xaxax"], &["a", "xax"]),
    ] {
        for name in yes {
            assert!(fits(glob, name), "{glob} {name}");
        }
        for name in no {
            assert!(!fits(glob, name), "{glob} {name}");
        }
    }
    assert!(Glob::parse("").is_none() && Glob::parse("a?").is_none());
}

#[test]
fn every_queue_is_said_by_stars_alone() {
    for (glob, every) in [("*", true), ("**", true), ("a*", false), ("*a", false), ("a", false)] {
        assert_eq!(Glob::parse(glob).unwrap().is_every(), every, "{glob}");
    }
}

#[test]
fn a_created_entry_says_what_was_asked_for() {
    let globs = ["orders-*", "mail"].map(|glob| Glob::parse(glob).unwrap());
    let made = create("ci", &[Role::Produce, Role::Read], &globs, [3; 32]).unwrap();
    let keys = Keys::from_json(&format!("[{}]", made["entry"])).unwrap();
    let key = keys.verify(made["key"].as_str().unwrap()).unwrap();
    assert!(key.has(Role::Produce) && key.has(Role::Read) && !key.has(Role::Consume) && !key.has(Role::Admin));
    assert!(key.reaches("orders-eu") && key.reaches("mail") && !key.reaches("orders") && !key.reaches_all());
}
