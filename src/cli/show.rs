//! Answers as people read them. Whatever came from elsewhere is shown without control characters: a terminal obeys them.

use serde_json::Value;

/// Widest cell of a table.
const CELL_MAX: usize = 60;

/// A heading and the field under it.
pub type Column = (&'static str, &'static str);

/// What a list of tasks shows.
pub const TASKS: &[Column] = &[
    ("ID", "id"),
    ("STATE", "state"),
    ("RUN AT", "run_at"),
    ("NEXT ATTEMPT", "next_attempt_at"),
    ("ATTEMPT", "attempt"),
    ("ENDED", "ended_at"),
    ("REASON", "reason"),
];
/// What a list of queues shows.
pub const QUEUES: &[Column] = &[
    ("NAME", "name"),
    ("PAUSED", "paused"),
    ("WEBHOOKS", "webhooks"),
    ("SCHEDULED", "scheduled"),
    ("DUE", "due"),
    ("ACTIVE", "active"),
    ("DEAD", "dead"),
    ("OLDEST DUE MS", "oldest_due_ms"),
];
/// What a list of webhooks shows.
pub const WEBHOOKS: &[Column] = &[
    ("ID", "id"),
    ("URL", "url"),
    ("ENABLED", "enabled"),
    ("FAILURES", "consecutive_failures"),
    ("HELD UNTIL", "held_until"),
    ("LAST SUCCESS", "last_success_at"),
    ("DISABLED", "disabled_reason"),
];

/// Without what a terminal would obey.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => clean(text),
        other => clean(&other.to_string()),
    }
}

fn clipped(text: String) -> String {
    if text.chars().count() <= CELL_MAX {
        return text;
    }
    text.chars().take(CELL_MAX - 1).chain(['…']).collect()
}

/// Rows under headings; only the headings where there is nothing.
#[must_use]
pub fn table(columns: &[Column], items: &[Value]) -> String {
    let mut rows = vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect::<Vec<_>>()];
    rows.extend(items.iter().map(|item| columns.iter().map(|(_, field)| clipped(cell(&item[*field]))).collect()));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A line each field.
#[must_use]
pub fn figures(object: &Value) -> String {
    let fields = object.as_object().into_iter().flatten();
    let fields: Vec<(&String, String)> = fields.map(|(name, value)| (name, cell(value))).collect();
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    fields.iter().map(|(name, value)| format!("{:width$}  {value}\n", clean(name))).collect()
}

/// A task: its fields, then its attempts.
#[must_use]
pub fn task(task: &Value) -> String {
    let mut fields = task.clone();
    let attempts = fields.as_object_mut().and_then(|fields| fields.remove("attempts"));
    let mut text = figures(&fields);
    if let Some(Value::Array(attempts)) = attempts
        && !attempts.is_empty()
    {
        const ATTEMPTS: &[Column] = &[
            ("ATTEMPT", "number"),
            ("WEBHOOK", "webhook"),
            ("STARTED", "started_at"),
            ("LATE MS", "lateness_ms"),
            ("TOOK MS", "duration_ms"),
            ("OUTCOME", "outcome"),
            ("STATUS", "status"),
            ("ERROR", "error"),
        ];
        text.push('\n');
        text.push_str(&table(ATTEMPTS, &attempts));
    }
    text
}

/// What became of a task, in a line.
#[must_use]
pub fn changed(task: &Value, word: &str) -> String {
    let next = match &task["next_attempt_at"] {
        Value::Null => String::new(),
        at => format!(", next attempt at {}", cell(at)),
    };
    format!("{} {word} ({}{next})\n", cell(&task["id"]), cell(&task["state"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_aligned_and_obeys_nobody() {
        let items = [json!({"id": "a", "url": "x\u{1b}[2J"}), json!({"id": "longer", "enabled": true})];
        let text = table(&[("ID", "id"), ("URL", "url"), ("ON", "enabled")], &items);
        assert_eq!(text, "ID      URL    ON\na       x\u{fffd}[2J  -\nlonger  -      yes\n");
        let long = table(&[("ID", "id")], &[json!({"id": "é".repeat(100)})]);
        assert_eq!(long.lines().nth(1).map(|l| l.chars().count()), Some(CELL_MAX));
    }

    #[test]
    fn a_task_shows_its_attempts() {
        let text = task(&json!({"id": "t", "state": "dead", "attempts": [{"number": 1, "error": "503\n"}]}));
        assert!(text.starts_with("id     t\nstate  dead\n\nATTEMPT  "), "{text}");
        assert_eq!(text.lines().last().map(|l| l.contains("503\u{fffd}")), Some(true), "{text}");
    }
}
