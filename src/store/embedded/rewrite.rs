//! The rewriting of the append-only file: a child of the server's own that wants a whole core for as long as it runs, each time
//! that the file has doubled. Beside it every hop of a task from one process to the next would wait for the end of somebody's
//! time slice, so it gets only what nobody else wants (`SCHED_IDLE`; a higher `nice` does not help: it shortens the share, not
//! the slice). Elsewhere than on Linux, or without `chrt` of util-linux, it stays as it is.

use std::{
    io,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// One that had no tenth of a core for so long is ended: on a machine that never idles it would come to no end, and the file would
/// grow for as long. It cannot be let forward again without privileges, so the next one stands beside us.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Rewrites {
    /// The last one was ended for coming to no end.
    was_ended: Arc<AtomicBool>,
}

impl Rewrites {
    /// Lets the child that this line of the server's log tells of, if it tells of one, stand behind.
    pub fn read(&self, line: &str) {
        let Some(child) = started(line) else { return };
        if let Err(error) = self.stand_behind(child, PATIENCE) {
            tracing::debug!(%error, "the rewriting of the append-only file does not stand behind");
        }
    }

    /// Whether it stands behind from now on.
    fn stand_behind(&self, child: Pid, patience: Duration) -> io::Result<bool> {
        if self.was_ended.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        // names the process and not its number, which may be another's by the time that we are out of patience
        let process = pidfd_open(child, PidfdFlags::empty())?;
        let idle = ["-i", "-p", "0", &child.as_raw_nonzero().to_string()];
        let status = Command::new("chrt")
            .args(idle)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(io::Error::other(format!("chrt: {status}")));
        }
        let was_ended = Arc::clone(&self.was_ended);
        let watch = move || {
            let span = Timespec::try_from(patience).ok();
            let mut before = cpu_of(child);
            while poll(&mut [PollFd::new(&process, PollFlags::IN)], span.as_ref()) == Ok(0) {
                let now = cpu_of(child);
                if !comes_on(before, now, patience) {
                    // Redis takes this signal for a wish and not for a failure
                    was_ended.store(pidfd_send_signal(&process, Signal::USR1).is_ok(), Ordering::Relaxed);
                    return;
                }
                before = now;
            }
        };
        thread::Builder::new().name("redis-rewrite".into()).spawn(watch)?;
        Ok(true)
    }
}

/// CPU that a process took so far.
fn cpu_of(process: Pid) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{}/schedstat", process.as_raw_nonzero())).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Whether one that had so much CPU before and now comes to an end.
fn comes_on(before: Option<Duration>, now: Option<Duration>, between: Duration) -> bool {
    before.zip(now).is_some_and(|(before, now)| now.saturating_sub(before) >= between / 10)
}

/// From `Background append only file rewriting started by pid 4711`.
fn started(line: &str) -> Option<Pid> {
    let pid = line.strip_prefix("Background append only file rewriting started by pid ")?;
    Pid::from_raw(pid.trim().parse().ok().filter(|pid| *pid > 1)?)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Child};

    use super::*;

    fn named(line: &str) -> Option<i32> {
        started(line).map(|pid| pid.as_raw_nonzero().get())
    }

    #[test]
    fn only_a_rewriting_is_told_of() {
        assert_eq!(named("Background append only file rewriting started by pid 4711"), Some(4711));
        assert_eq!(named("Background append only file rewriting started by pid 1"), None);
        assert_eq!(named("Background append only file rewriting started by pid -4"), None);
        assert_eq!(named("Background saving started by pid 12"), None, "a replica waits for this one");
    }

    #[test]
    fn what_gets_a_tenth_of_a_core_comes_on() {
        let secs = |n| Some(Duration::from_secs(n));
        assert!(comes_on(secs(4), secs(7), PATIENCE));
        assert!(!comes_on(secs(4), secs(6), PATIENCE));
        assert!(!comes_on(None, secs(30), PATIENCE), "it cannot be seen");
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(cpu_of(own).unwrap() > Duration::ZERO);
    }

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    #[test]
    fn one_that_comes_to_no_end_is_ended_and_the_next_stands_beside_us() {
        const SOON: Duration = Duration::from_millis(50);
        let rewrites = Rewrites::default();
        let (mut first, pid) = sleeper();
        assert!(rewrites.stand_behind(pid, SOON).unwrap());
        assert_eq!(first.wait().unwrap().signal(), Some(Signal::USR1.as_raw()));
        while !rewrites.was_ended.load(Ordering::Relaxed) {
            thread::yield_now();
        }

        let (mut second, pid) = sleeper();
        assert!(!rewrites.stand_behind(pid, SOON).unwrap());
        assert_eq!(second.try_wait().unwrap(), None, "left alone");
        second.kill().and_then(|()| second.wait()).unwrap();

        let (mut third, pid) = sleeper();
        assert!(rewrites.stand_behind(pid, SOON).unwrap(), "the one after it stands behind again");
        assert_eq!(third.wait().unwrap().signal(), Some(Signal::USR1.as_raw()));
    }

    #[test]
    fn one_that_ends_in_time_is_forgotten() {
        let rewrites = Rewrites::default();
        let mut child = Command::new("sleep").arg("0.2").spawn().unwrap();
        assert!(rewrites.stand_behind(Pid::from_child(&child), PATIENCE).unwrap());
        assert!(child.wait().unwrap().success());
        assert!(!rewrites.was_ended.load(Ordering::Relaxed));
    }
}
