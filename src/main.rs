//! Arguments → config → telemetry → [`duepost::app::run`]; nothing else.
#![forbid(unsafe_code)]

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser as _;
use duepost::{
    app::{self, AppError},
    cli::{self, Cli, CliError, Command, ConfigCommand, Exit, KeyCommand},
    config::{self, CliArgs, Config, Mode, mask_userinfo},
    store::embedded,
    telemetry,
};

/// Why: docs/decisions.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // first of all, without a runtime: the private Redis is started through us (see `store::embedded`)
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == embedded::CHILD_COMMAND) {
        embedded::run_child(args);
    }
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true); // why: docs/decisions.md, mimalloc
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) if told.use_stderr() => {
            // clap repeats what it did not understand, which may be a URL with a password
            eprint!("{}", mask_userinfo(&told.render().to_string()));
            return Exit::Usage.into();
        }
        Err(told) => return say(&told.render().to_string()),
    };
    let env = match config::environment() {
        Ok(env) => env,
        Err(e) => return fail(&e, Exit::Config),
    };
    let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    match cli.command {
        Command::Dev(settings) => start(Mode::Dev, &settings, env, &cwd),
        Command::Serve(settings) => start(Mode::Serve, &settings, env, &cwd),
        Command::Fsck { repair, json, settings } => fsck(repair, json, &settings, env, &cwd),
        Command::Openapi => say(&duepost::http::openapi_json()),
        Command::Healthcheck { url, settings } => told(cli::healthcheck(url.as_deref(), &settings, env, &cwd)),
        Command::Config(ConfigCommand::Show { mode, settings }) => {
            told(cli::config_show(mode.into(), &settings, env, &cwd))
        }
        Command::Key(KeyCommand::New { name, roles, queues }) => told(cli::key_new(&name, &roles, &queues)),
        Command::Ask(ask) => {
            let result = ask.run(&env.into_iter().collect(), &cwd);
            if let (true, Err(CliError::Refused { text, .. })) = (ask.json(), &result) {
                say(&format!("{text}\n"));
            }
            told(result)
        }
        Command::Completions { shell } => say(&cli::completions(shell)),
        Command::Man { command } => told(cli::man(command.as_deref())),
        Command::Version => say(concat!("duepost ", env!("CARGO_PKG_VERSION"), "\n")),
    }
}

/// Starts the service and stays until it ends.
fn start(mode: Mode, settings: &CliArgs, env: Vec<(String, String)>, cwd: &Path) -> ExitCode {
    let run = |config| app::run(config, mode);
    in_runtime(mode, settings, env, cwd, run).map_or_else(|code| code, |()| Exit::Success.into())
}

/// Looks once.
fn fsck(repair: bool, json: bool, settings: &CliArgs, env: Vec<(String, String)>, cwd: &Path) -> ExitCode {
    let look = |config| app::fsck(config, repair);
    let audit = match in_runtime(Mode::Serve, settings, env, cwd, look) {
        Ok(audit) => audit,
        Err(code) => return code,
    };
    let said = say(&if json { cli::fsck::json(&audit) } else { cli::fsck::text(&audit) });
    if audit.is_clean() { said } else { Exit::Findings.into() }
}

/// Reads the settings, and runs something under them.
fn in_runtime<T, F: Future<Output = Result<T, AppError>>>(
    mode: Mode,
    settings: &CliArgs,
    env: Vec<(String, String)>,
    cwd: &Path,
    run: impl FnOnce(Config) -> F,
) -> Result<T, ExitCode> {
    let loaded = Config::load(mode, settings, env, cwd).map_err(|e| fail(&e, Exit::Config))?;
    telemetry::init(&loaded.config.log, loaded.config.log_format).map_err(|e| fail(&e, Exit::Config))?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(loaded.config.threads).enable_all().build();
    let runtime = runtime.map_err(|e| fail(&format!("the runtime does not start: {e}"), Exit::Failure))?;
    runtime.block_on(run(loaded.config)).map_err(|e| {
        let exit = if e.is_set_up() { Exit::Config } else { Exit::Failure };
        fail(&telemetry::chain(&e), exit)
    })
}

fn told(result: Result<String, CliError>) -> ExitCode {
    match result {
        Ok(text) => say(&text),
        Err(e) => fail(&e, e.exit()),
    }
}

/// Prints; a reader that has gone (`| head`) is no reason to panic.
fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Exit::Failure.into(),
        _ => Exit::Success.into(),
    }
}

fn fail(error: &dyn std::fmt::Display, exit: Exit) -> ExitCode {
    eprintln!("error: {error}");
    exit.into()
}
