//! What `fsck` found, for people and for machines.

use serde_json::json;

use super::{Said, show::clean};
use crate::store::Audit;

/// A line a fault, and a sum.
#[must_use]
pub fn text(audit: &Audit) -> Said {
    let mut said = String::new();
    for it in &audit.findings {
        let task = it.id.as_ref().map(|id| format!(" task {}", clean(id))).unwrap_or_default();
        let detail = if it.detail.is_empty() { String::new() } else { format!(": {}", clean(&it.detail)) };
        let what = if it.repaired {
            " (repaired)"
        } else if it.fault.can_be_repaired() {
            " (--repair can mend it)"
        } else {
            ""
        };
        said += &format!("{}{task}: {}{detail}{what}\n", it.queue, it.fault.as_str());
    }
    if audit.faults > audit.findings.len() {
        said += &format!("… and {} more\n", audit.faults - audit.findings.len());
    }
    let faults = match (audit.faults, audit.repaired) {
        (0, _) => "no faults".to_owned(),
        (faults, 0) => format!("{faults} faults"),
        (faults, repaired) => format!("{faults} faults, {repaired} repaired"),
    };
    said + &format!("{} queues, {} tasks: {faults}\n", audit.queues, audit.tasks)
}

/// The same as one JSON object.
#[must_use]
pub fn json(audit: &Audit) -> Said {
    let findings = audit.findings.iter().map(|it| {
        json!({
            "queue": it.queue, "id": it.id, "fault": it.fault.as_str(), "detail": it.detail, "repaired": it.repaired,
        })
    });
    let whole = json!({
        "clean": audit.is_clean(), "queues": audit.queues, "tasks": audit.tasks, "faults": audit.faults,
        "repaired": audit.repaired, "findings": findings.collect::<Vec<_>>(),
    });
    format!("{whole}\n")
}
