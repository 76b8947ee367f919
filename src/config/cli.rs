//! The flags that stand for settings, made from the table. All of them are optional and none has a default here, or it
//! would hide what environment and file say.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::settings::{Kind, SETTINGS, Setting};

/// The flags given, not yet interpreted.
#[derive(Clone, Default)]
pub struct CliArgs {
    /// `--config`: the TOML file.
    pub config: Option<PathBuf>,
    /// By the name of the setting.
    pub values: BTreeMap<&'static str, String>,
}

/// Names only: a value may be a password.
impl std::fmt::Debug for CliArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let mut help = format!("{} [env: {}]", setting.help, setting.variable());
    match setting.default {
        ("", "") => {}
        (dev, serve) if dev == serve => help += &format!(" [default: {serve}]"),
        (dev, serve) => help += &format!(" [default: {serve}; dev: {dev}]"),
    }
    let arg = Arg::new(setting.name)
        .long(setting.flag_name())
        .value_name(setting.kind.placeholder())
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
        .help(help);
    match setting.kind {
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    }
}

impl clap::Args for CliArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .help("TOML file with settings [env: DUEPOST_CONFIG] [default: duepost.toml, if there is one]");
        command.arg(config).args(SETTINGS.iter().filter(|s| s.flag).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for CliArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        for setting in SETTINGS.iter().filter(|s| s.flag) {
            if let Some(text) = matches.get_one::<String>(setting.name) {
                self.values.insert(setting.name, text.clone());
            }
        }
        Ok(())
    }
}
