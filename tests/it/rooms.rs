//! The shape of the code, read from its text: which room may use which, and that machine and scripts agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use duepost::domain::task::TRANSITIONS;

/// Scripts that move no task: they read, or change a queue's set-up.
const MOVE_NOTHING: [&str; 7] = ["agenda", "books", "describe", "gate", "get", "list", "stats"];

/// Roots that any room but `domain` may use: plain modules that know no room's business.
const PLAIN: [&str; 4] = ["config", "health", "keys", "telemetry"];

/// Who may use whom.
const ROOMS: [(&str, &[&str]); 5] = [
    ("domain", &[]),
    ("store", &["domain"]),
    ("delivery", &["domain"]),
    ("worker", &["domain", "store", "delivery"]),
    ("http", &["domain", "store", "delivery"]),
];

/// `http` delivers nothing, but for the call that tests a webhook.
const MAY_DELIVER: &str = "http/webhooks";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Files of this ending under a folder, as paths relative to `src`.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path.strip_prefix(root()).expect("below src").to_owned());
        }
    }
}

/// The modules at the crate's root that a text names after `crate::`, in groups too; comments do not count.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let word = |t: &str| t.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            names.insert(word(rest));
            continue;
        };
        let (mut depth, mut first) = (1, true);
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => first = true,
                c if first && depth == 1 && !c.is_whitespace() => {
                    names.insert(word(&group[i..]));
                    first = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

#[test]
fn names_are_found_in_every_form_of_use() {
    let text =
        "use crate::a::b;\nuse crate::{\n    c::{d, e}, // crate::no\n    f,\n};\nlet x = crate::g::h(); //! crate::no";
    assert_eq!(named(text).into_iter().collect::<Vec<_>>(), ["a", "c", "f", "g"]);
}

#[test]
fn rooms_use_only_the_rooms_they_may() {
    let mut all = Vec::new();
    files(&root(), "rs", &mut all);
    let mut seen = BTreeSet::new();
    for file in all {
        let path = file.to_str().expect("a name").to_owned();
        let room = path.split(['/', '.']).next().expect("a first part");
        let Some((room, may)) = ROOMS.iter().find(|(name, _)| *name == room) else { continue };
        seen.insert(*room);
        let text = std::fs::read_to_string(root().join(&file)).expect("a text");
        for used in named(&text) {
            let plain = *room != "domain" && PLAIN.contains(&used.as_str());
            let allowed = used == *room || plain || may.contains(&used.as_str());
            assert!(allowed, "src/{path} uses {used}, which `{room}` may not");
            let delivers = *room == "http" && used == "delivery";
            assert!(!delivers || path.starts_with(MAY_DELIVER), "src/{path} uses delivery");
        }
        let top = path == format!("{room}/mod.rs") || path == format!("{room}.rs");
        assert!(!top || !text.contains("super::"), "src/{path} leaves its room by `super`");
    }
    assert_eq!(seen.len(), ROOMS.len(), "a room is missing: {seen:?}");
}

#[test]
fn each_transition_names_a_script_and_each_script_is_known() {
    let mut all = Vec::new();
    files(&root().join("store/lua"), "lua", &mut all);
    let scripts: BTreeSet<String> =
        all.iter().map(|f| f.file_stem().expect("a name").to_str().expect("text").to_owned()).collect();
    let moving: BTreeSet<&str> = TRANSITIONS.iter().map(|(_, script, _)| *script).collect();
    for script in &moving {
        assert!(scripts.contains(*script), "{script}.lua of the table is missing");
    }
    for script in scripts.iter().filter(|s| !s.starts_with('_')) {
        let (moves, does_not) = (moving.contains(script.as_str()), MOVE_NOTHING.contains(&script.as_str()));
        assert!(moves != does_not, "{script}.lua: in the table {moves}, among those that move nothing {does_not}");
    }
    for script in MOVE_NOTHING {
        let text = std::fs::read_to_string(root().join(format!("store/lua/{script}.lua"))).expect("a script");
        for set in ["DUE", "ACTIVE", "COMPLETED", "DEAD", "CANCELLED", "EXPIRED"] {
            assert!(!text.contains(&format!("call('ZADD', {set}")), "{script}.lua moves a task to {set}");
        }
    }
}

#[test]
fn the_table_has_no_row_twice_and_only_a_put_leads_out_of_delivered() {
    let mut rows = BTreeMap::new();
    for (from, script, to) in TRANSITIONS {
        let name = |s: &Option<duepost::domain::task::TaskState>| s.map_or("none", |s| s.as_str());
        *rows.entry((name(from), *script, name(to))).or_insert(0) += 1;
    }
    assert!(rows.values().all(|n| *n == 1), "{rows:?}");
    let stays = |(from, script, to): &(&str, &str, &str)| *from != "completed" || *to == "none" || *script == "replace";
    assert!(rows.keys().all(stays), "{rows:?}");
}

#[test]
fn scripts_have_one_header_form_and_a_readable_size() {
    let mut all = Vec::new();
    files(&root().join("store/lua"), "lua", &mut all);
    for file in all {
        let name = file.file_stem().expect("a name").to_str().expect("text").to_owned();
        let text = std::fs::read_to_string(root().join(&file)).expect("a script");
        let most = if name == "_lib" { 140 } else { 120 };
        assert!(text.lines().count() <= most, "{name}.lua has {} lines", text.lines().count());
        if name.starts_with('_') {
            continue;
        }
        assert!(text.starts_with(&format!("-- {name}: ")), "{name}.lua begins with its name and what it does");
        let head: String = text.lines().take_while(|l| l.starts_with("--")).collect::<Vec<_>>().join("\n");
        for part in ["-- KEYS  ", "-- Answers "] {
            assert!(head.contains(part), "the head of {name}.lua says nothing of {part}");
        }
        assert_eq!(head.contains("-- ARGV  "), text.contains("ARGV["), "{name}.lua: ARGV in the head");
    }
}
