//! The command line: what can be said, and the small commands that need no service. Those that ask one are in [`ask`].
//!
//! Exit codes: 0 done; 1 failed, trying again may help (no answer, 5xx, 429); 2 wrong usage; 3 not there (404); 4 refused
//! (any other 4xx); 5 `fsck` found faults that are not repaired; 78 wrong configuration or no Redis to run on (`EX_CONFIG`).

pub mod ask;
pub mod call;
pub mod fsck;
pub mod show;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::{
    config::{CliArgs, Config, ConfigError, Mode},
    keys::{self, Glob, Role},
};

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or stopped as told.
    Success = 0,
    /// The command failed.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// What was asked for is not there.
    NotThere = 3,
    /// The service refused the call.
    Refused = 4,
    /// `fsck` found something that is not as it should be.
    Findings = 5,
    /// The configuration is wrong, or there is no Redis to run on.
    Config = 78,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Tasks, POSTed when due: a delay queue on Redis
#[derive(Debug, Parser)]
#[command(
    name = "duepost",
    version,
    after_help = "Settings come from flags, then DUEPOST_* variables, then the TOML file, then defaults.\n\
                  Commands that ask a service find it by --url or DUEPOST_URL, and its key in DUEPOST_KEY or --key-file.\n\
                  Exit codes: 0 done, 1 failed (no answer, 5xx, 429: try again), 2 wrong usage, 3 not there (404), 4 refused\n\
                  (other 4xx), 5 fsck found faults, 78 wrong configuration or no Redis."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run at a desk: private Redis, loopback receivers allowed, a receiver built in
    Dev(CliArgs),
    /// Run in production
    Serve(CliArgs),
    #[command(flatten)]
    #[allow(missing_docs)]
    Ask(Box<ask::Ask>),
    /// Print the OpenAPI specification
    Openapi,
    /// Ask /readyz of a running service; exit 0 if it is ready, 1 if not
    Healthcheck {
        /// The URL to ask, http only [default: /readyz on the `listen` address of the settings]
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        settings: CliArgs,
    },
    /// Look at all that is kept, beside a running service or without one: is anything lost, left over, or counted wrong?
    Fsck {
        /// Put right what can be put right
        #[arg(long)]
        repair: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        settings: CliArgs,
    },
    /// The settings of the service
    #[command(subcommand)]
    Config(ConfigCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the script that completes commands in a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of one command if it is named
    Man {
        /// The command
        command: Option<String>,
    },
    /// Print the version
    Version,
}

/// What can be done with settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each setting with where it comes from, secrets masked; the output is a TOML file
    Show {
        /// For which command
        #[arg(long, value_enum, default_value = "serve")]
        mode: ShownMode,
        #[command(flatten)]
        #[allow(missing_docs)]
        settings: CliArgs,
    },
}

/// [`Mode`] as a word.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[allow(missing_docs)]
pub enum ShownMode {
    Dev,
    Serve,
}

impl From<ShownMode> for Mode {
    fn from(mode: ShownMode) -> Self {
        match mode {
            ShownMode::Dev => Self::Dev,
            ShownMode::Serve => Self::Serve,
        }
    }
}

/// What can be done with API keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key: prints it, this once, and the entry for keys_file or DUEPOST_KEYS
    New {
        /// Whose it is: 1 to 64 of A-Z a-z 0-9 . _ -
        #[arg(long)]
        name: String,
        /// What it may do: produce, consume, read or admin (everything); may be repeated
        #[arg(long = "role", value_name = "ROLE", default_value = "admin")]
        roles: Vec<Role>,
        /// For which queues: names, in which * stands for anything; may be repeated
        #[arg(long = "queues", value_name = "GLOB", default_value = "*")]
        queues: Vec<Glob>,
    },
}

/// What a small command says when it is done.
pub type Said = String;

/// Why a small command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// As for the service.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name of a key.
    #[error("--name is not 1 to 64 of A-Z a-z 0-9 . _ -")]
    KeyName,
    /// The system gave no random bits.
    #[error("the system gives no random bits: {0}")]
    Random(getrandom::Error),
    /// Not a URL that can be asked.
    #[error("--url is not http://host[:port]/path")]
    Url,
    /// Nobody answered.
    #[error("no answer from {0}: {1}")]
    NoAnswer(String, std::io::Error),
    /// Not a service that can be asked.
    #[error("--url or DUEPOST_URL is not http(s)://host[:port], without user, query and fragment")]
    ServiceUrl,
    /// Not a key.
    #[error("the API key has characters that no key has")]
    Key,
    /// No key can be read.
    #[error("cannot read the key file {}: {_1}", _0.display())]
    KeyFile(PathBuf, std::io::Error),
    /// The payload of a new task.
    #[error("the payload {0}")]
    Payload(String),
    /// A header of a new task.
    #[error("--header is not NAME=VALUE, each name once")]
    Header,
    /// No such command.
    #[error("there is no command of that name")]
    NoCommand,
    /// The service did not answer.
    #[error("no answer from {0}: {1}")]
    Silent(String, String),
    /// Not an answer of this service.
    #[error("that was no answer of a duepost service: {0}")]
    Answer(String),
    /// The service refused.
    #[error("{}", refusal(*status, text))]
    Refused {
        /// Its status.
        status: u16,
        /// Its body, a problem.
        text: String,
    },
    /// Somebody answered, but not with 2xx.
    #[error("not ready: {0}")]
    NotReady(String),
}

impl CliError {
    /// The exit code that says it.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Config,
            Self::KeyName
            | Self::Url
            | Self::ServiceUrl
            | Self::Key
            | Self::KeyFile(..)
            | Self::Payload(_)
            | Self::Header
            | Self::NoCommand => Exit::Usage,
            Self::Refused { status: 404, .. } => Exit::NotThere,
            Self::Refused { status: 400..=428 | 430..=499, .. } => Exit::Refused,
            Self::Random(_)
            | Self::NoAnswer(..)
            | Self::NotReady(_)
            | Self::Silent(..)
            | Self::Answer(_)
            | Self::Refused { .. } => Exit::Failure,
        }
    }
}

/// `config show`.
///
/// # Errors
/// What would keep the service from starting.
pub fn config_show(mode: Mode, settings: &CliArgs, env: Vec<(String, String)>, cwd: &Path) -> Result<Said, CliError> {
    Ok(Config::load(mode, settings, env, cwd)?.show())
}

/// `key new`.
///
/// # Errors
/// The name, or no random bits.
pub fn key_new(name: &str, roles: &[Role], queues: &[Glob]) -> Result<Said, CliError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(CliError::Random)?;
    let made = keys::create(name, roles, queues, random).ok_or(CliError::KeyName)?;
    // the entry on one line: in brackets it is a value of DUEPOST_KEYS
    Ok(format!("{{\n  \"key\": {},\n  \"entry\": {}\n}}\n", made["key"], made["entry"]))
}

/// What a problem says to people.
fn refusal(status: u16, text: &str) -> String {
    let problem: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| problem[name].as_str().map(show::clean);
    match (field("type"), field("detail"), field("request_id")) {
        (Some(slug), Some(detail), Some(id)) => {
            format!("{status} {}: {detail} (request {id})", slug.trim_start_matches("/problems/"))
        }
        _ => format!("{status}, and that was no answer of a duepost service"),
    }
}

/// `completions`.
#[must_use]
pub fn completions(shell: clap_complete::Shell) -> Said {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "duepost", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// `man`.
///
/// # Errors
/// No such command.
pub fn man(name: Option<&str>) -> Result<Said, CliError> {
    let mut all = Cli::command();
    all.build();
    let command = match name {
        None => all,
        Some(name) => all.find_subcommand(name).ok_or(CliError::NoCommand)?.clone(),
    };
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.map_err(|e| CliError::Answer(e.to_string()))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// How long a health check waits for each step.
const PATIENCE: Duration = Duration::from_secs(3);

/// `healthcheck`: one GET, HTTP/1.1, no TLS; asks the address that the settings listen on unless a URL is given.
///
/// # Errors
/// No answer in time, or one that is not 2xx.
pub fn healthcheck(
    url: Option<&str>,
    settings: &CliArgs,
    env: Vec<(String, String)>,
    cwd: &Path,
) -> Result<Said, CliError> {
    let url = match url {
        Some(url) => url.to_owned(),
        None => format!("http://{}/readyz", reachable(Config::listen_address(settings, env, cwd)?)),
    };
    let url = url::Url::parse(&url).map_err(|_| CliError::Url)?;
    let host = url.host_str().filter(|_| url.scheme() == "http").ok_or(CliError::Url)?;
    let port = url.port().unwrap_or(80);
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let head = ask(host, port, path).map_err(|e| CliError::NoAnswer(format!("{host}:{port}"), e))?;
    let mut words = head.split_ascii_whitespace();
    let status = words.next().filter(|v| v.starts_with("HTTP/1.")).and_then(|_| words.next()).unwrap_or_default();
    if status.len() == 3 && status.starts_with('2') {
        Ok("ready\n".to_owned())
    } else {
        Err(CliError::NotReady(head.lines().next().unwrap_or_default().chars().take(100).collect()))
    }
}

/// Where a listener on every address can be reached from its own machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Sends a GET and reads the first KiB of the answer.
fn ask(host: &str, port: u16, path: &str) -> std::io::Result<String> {
    let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    let address = (host.trim_matches(['[', ']']), port).to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\nuser-agent: duepost-healthcheck\r\n\r\n"
    )?;
    let mut head = Vec::new();
    let mut chunk = [0; 256];
    while head.len() < 1024 && !head.contains(&b'\n') {
        match stream.read(&mut chunk)? {
            0 => break,
            n => head.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("127.0.0.2:1", "127.0.0.2:1"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
