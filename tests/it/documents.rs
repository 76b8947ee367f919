//! What the documents say of the code, held against the code: the diagram of states, the table of settings,
//! names of tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use duepost::{
    config::{Mode, settings::SETTINGS},
    domain::task::{TRANSITIONS, TaskState},
};

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn read(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|e| panic!("{relative}: {e}"))
}

#[test]
fn the_diagram_of_states_is_the_table() {
    let word = |state: Option<TaskState>| state.map_or("[*]", TaskState::as_str).to_owned();
    let mut table = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for (from, script, to) in TRANSITIONS {
        table.entry((word(*from), word(*to))).or_default().insert((*script).to_owned());
    }
    let design = read("docs/design.md");
    let diagram = design.split("stateDiagram-v2").nth(1).and_then(|d| d.split("```").next()).expect("a diagram");
    let mut drawn = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for line in diagram.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (arrow, label) = line.split_once(": ").unwrap_or_else(|| panic!("no label: {line}"));
        let (from, to) = arrow.split_once(" --> ").unwrap_or_else(|| panic!("no arrow: {line}"));
        let mut plain = String::new();
        let mut depth = 0;
        for c in label.chars() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                c if depth == 0 => plain.push(c),
                _ => {}
            }
        }
        drawn.insert((from.to_owned(), to.to_owned()), plain.split(',').map(|s| s.trim().to_owned()).collect());
    }
    assert_eq!(drawn, table);
}

#[test]
fn the_table_of_settings_is_that_of_the_code() {
    let operations = read("docs/operations.md");
    let rows: Vec<Vec<&str>> = operations
        .lines()
        .skip_while(|line| !line.starts_with("| setting in TOML"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let code = |text: &str| format!("`{text}`");
    assert_eq!(rows.len(), SETTINGS.len());
    for (row, setting) in rows.iter().zip(SETTINGS) {
        let flag = if setting.flag { code(&format!("--{}", setting.flag_name())) } else { "–".to_owned() };
        assert_eq!(row[..3], [code(setting.name), flag, code(&setting.variable())], "{row:?}");
        for default in [Mode::Serve, Mode::Dev].into_iter().filter_map(|mode| setting.default_for(mode)) {
            assert!(row[3].contains(&code(default)), "the default of {} is {default}: {row:?}", setting.name);
        }
    }
}

#[test]
fn tests_that_the_documents_name_are_there() {
    let entries = fs::read_dir(path("tests/it")).expect("the tests");
    let files = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
    let sources: String = files.map(|file| fs::read_to_string(file).expect("a source file")).collect();
    for document in ["README.md", "docs/operations.md"] {
        for line in read(document).lines() {
            // every second piece stands between backticks
            for name in line.split('`').skip(1).step_by(2).filter(|n| n.matches('_').count() > 2) {
                let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_…".contains(c));
                if is_name && !name.starts_with("duepost_") {
                    let start = format!("fn {}", name.trim_end_matches('…'));
                    assert!(sources.contains(&start), "{document} names a test that is not there: {name}");
                }
            }
        }
    }
}

#[test]
fn the_image_is_built_from_a_manifest_whose_targets_are_all_there() {
    let dockerfile = read("Dockerfile");
    for line in read("Cargo.toml").lines() {
        let Some(path) = line.strip_prefix("path = \"").and_then(|p| p.strip_suffix('"')) else { continue };
        assert!(dockerfile.contains(path), "Cargo refuses the manifest without {path}, which the context leaves out");
    }
}
