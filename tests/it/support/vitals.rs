//! What a process uses, as Linux tells it.

use std::time::Duration;

/// Open descriptors.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count()
}

/// Resident memory in KiB.
pub fn memory_kib(pid: u32) -> i64 {
    status_kib(pid, "VmRSS:")
}

/// The part of it that is no file's.
pub fn anonymous_kib(pid: u32) -> i64 {
    status_kib(pid, "RssAnon:")
}

fn status_kib(pid: u32, name: &str) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a figure in kB")
}

/// Time that its threads have spent on a core.
pub fn cpu(pid: u32) -> Duration {
    /// Of the figures of `stat`, on every Linux that Rust runs on.
    const TICKS_A_SECOND: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let ticks: u64 = [11, 12].iter().map(|n: &usize| fields[*n].parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 1000 / TICKS_A_SECOND)
}
