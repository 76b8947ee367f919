//! What the child prints: into our log, and the last lines kept for an error message.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, PipeReader, Read},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

#[cfg(target_os = "linux")]
use super::rewrite::Rewrites;

/// Enough for the reason of a failed start.
const KEPT_LINES: usize = 20;
/// Longer lines are cut in pieces; Redis's own limit is 1024.
const MAX_LINE_BYTES: u64 = 4096;
/// How long to wait for the rest of the output of a child that is gone; a child of its own may hold the pipe longer.
const REST: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Redis's own levels count only while it serves: at start and end it shouts about ordinary things, and we tell
    /// those ourselves.
    serving: AtomicBool,
    hinted: AtomicBool,
    tail: Mutex<VecDeque<String>>,
    #[cfg(target_os = "linux")]
    rewrites: Rewrites,
}

/// Open until all output was read.
#[derive(Debug)]
pub struct Pump(mpsc::Receiver<()>);

impl Pump {
    pub fn finish(&self) {
        let _ = self.0.recv_timeout(REST); // the closed channel is the sign
    }
}

impl Log {
    pub fn serving(&self, yes: bool) {
        self.0.serving.store(yes, Ordering::Relaxed);
    }

    pub fn last_lines(&self) -> Vec<String> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Reads on a thread of its own until all writers have closed the pipe.
    pub fn pump(&self, output: PipeReader) -> std::io::Result<Pump> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let (open, closed) = mpsc::channel();
        let log = self.clone();
        thread::Builder::new().name("redis-log".into()).spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                log.line(String::from_utf8_lossy(&line).trim());
                line.clear();
            }
            drop(open);
        })?;
        Ok(Pump(closed))
    }

    fn line(&self, line: &str) {
        let (level, text) = split(line);
        if text.is_empty() {
            return;
        }
        {
            let mut tail = self.0.tail.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.len() == KEPT_LINES {
                tail.pop_front();
            }
            tail.push_back(text.to_owned());
        }
        #[cfg(target_os = "linux")]
        self.0.rewrites.read(text);
        if text.contains("overcommit") && !self.0.hinted.swap(true, Ordering::Relaxed) {
            tracing::info!(target: "redis", "hint: with vm.overcommit_memory=0 a rewrite of the append-only file may fail when memory is short");
        }
        match (level, self.0.serving.load(Ordering::Relaxed)) {
            (Level::Warning, true) => tracing::warn!(target: "redis", "{text}"),
            (Level::Notice, true) => tracing::info!(target: "redis", "{text}"),
            _ => tracing::debug!(target: "redis", "{text}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Debug,
    Notice,
    Warning,
}

/// `4711:M 30 Nov 2026 20:14:00.123 * Ready to accept connections` without what our own log adds anyway. What is not
/// of that form came from stderr: a crash report, or a complaint about the configuration.
fn split(line: &str) -> (Level, &str) {
    let mut words = line.splitn(7, ' ');
    let role = words.next().and_then(|word| word.split_once(':')).map(|(_, role)| role);
    let level = words.nth(4);
    match (role, level) {
        (Some("M" | "S" | "C" | "X"), Some("#")) => (Level::Warning, words.next().unwrap_or_default()),
        (Some("M" | "S" | "C" | "X"), Some("*")) => (Level::Notice, words.next().unwrap_or_default()),
        (Some("M" | "S" | "C" | "X"), Some("-" | ".")) => (Level::Debug, words.next().unwrap_or_default()),
        _ => (Level::Warning, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_loses_what_our_log_adds_anyway() {
        assert_eq!(split("4711:M 30 Nov 2026 20:14:00.123 * Ready now"), (Level::Notice, "Ready now"));
        assert_eq!(split("4711:C 01 Dec 2026 20:14:00.123 # WARNING a b"), (Level::Warning, "WARNING a b"));
        assert_eq!(split("4711:M 30 Nov 2026 20:14:00.123 . chat"), (Level::Debug, "chat"));
        assert_eq!(split(">>> 'port x'"), (Level::Warning, ">>> 'port x'"));
        assert_eq!(split(""), (Level::Warning, ""));
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let log = Log::default();
        (0..KEPT_LINES + 5).for_each(|n| log.line(&format!("line {n}")));
        assert_eq!(log.last_lines().len(), KEPT_LINES);
        assert_eq!(log.last_lines().first().map(String::as_str), Some("line 5"));
    }
}
