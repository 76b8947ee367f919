//! The child's side: what it is started with, and the step in our own binary that becomes the server.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use super::{AppendFsync, data_dir::DataDir, server::Server};

/// First argument that makes our binary call [`run_child`]. Not for people.
pub const CHILD_COMMAND: &str = "__redis-child";

/// `<launcher> __redis-child <our pid> <server> -`, with the configuration to be written to its stdin.
///
/// The lock goes over as the child's *stderr*: an inherited descriptor without `CLOEXEC` would also reach every other
/// process that some thread happens to start at the same moment, and keep the directory locked.
pub fn command(launcher: &Path, server: &Server, lock: File, output: io::PipeWriter) -> Command {
    let mut command = Command::new(launcher);
    command
        .arg(CHILD_COMMAND)
        .arg(std::process::id().to_string())
        .arg(&server.path)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(lock)
        .process_group(0); // Ctrl-C in the terminal is for us; the server leaves after the drain
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"DUEPOST_")) {
        command.env_remove(name); // may be secrets, and are none of its business
    }
    command
}

/// Sorted sets with more members are skip lists. Redis's default of 128 saves memory where there are very many small ones; a
/// queue has six, and those that hold the tasks under way are searched for each of them.
const SMALL_SETS: u8 = 8;
/// The same of hashes, for 512: the run rows of a queue that keeps nothing are as many as its tasks under way.
const SMALL_HASHES: u8 = 32;

/// The whole configuration. On stdin rather than in the arguments, where every user of the machine could read it.
pub fn config(home: &DataDir, appendfsync: AppendFsync) -> String {
    let (dir, socket) = (quoted(home.redis_dir().as_os_str()), quoted(home.socket().as_os_str()));
    let appendfsync = appendfsync.as_str();
    format!(
        "port 0\nunixsocket {socket}\nunixsocketperm 700\ndir {dir}\n\
         appendonly yes\nappendfsync {appendfsync}\naof-use-rdb-preamble yes\nsave \"\"\n\
         maxmemory-policy noeviction\ndatabases 1\ndaemonize no\nloglevel notice\n\
         zset-max-ziplist-entries {SMALL_SETS}\nhash-max-ziplist-entries {SMALL_HASHES}\n"
    )
}

/// A configuration value in Redis's quotes, whatever bytes a path is made of.
fn quoted(value: &OsStr) -> String {
    let mut text = String::from('"');
    for &byte in value.as_bytes() {
        match byte {
            b' '..=b'~' if byte != b'"' && byte != b'\\' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('"');
    text
}

/// Body of the hidden subcommand: becomes the server, tied to the life of its parent. `args` are those behind
/// [`CHILD_COMMAND`]. Must run before any thread, runtime, or reading of the command line.
pub fn run_child(args: impl Iterator<Item = OsString>) -> ! {
    let Err(error) = become_server(args);
    eprintln!("duepost: the server was not started: {error}");
    std::process::exit(126);
}

fn become_server(mut args: impl Iterator<Item = OsString>) -> io::Result<Infallible> {
    let _lock = rustix::io::dup(io::stderr())?; // a duplicate has no CLOEXEC: the server keeps it
    rustix::stdio::dup2_stderr(io::stdout())?; // and what it says on stderr joins its log

    let (Some(parent), Some(server)) = (args.next(), args.next()) else {
        return Err(io::Error::other("started by hand"));
    };
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    // the signal is not sent for a parent that died before we asked for it
    let alive = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if alive.as_deref().map(OsStr::new) != Some(&parent) {
        return Err(io::Error::other("the parent is gone"));
    }
    Err(Command::new(server).args(args).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_break_out_of_its_quotes() {
        let path = OsStr::from_bytes(b"/a b/\"\\\n\xff#'");
        assert_eq!(quoted(path), r#""/a b/\x22\x5c\x0a\xff#'""#);
    }
}
