//! Where values come from: flags over environment over file. Nothing is interpreted here but the names; a name that no
//! setting has is refused, because a typo must not mean "the default".

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    ConfigError,
    cli::CliArgs,
    settings::{self, OTHER_VARIABLES, PREFIX, SETTINGS},
};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave one.
    Default,
    /// A command line flag.
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// A line of the TOML file: its path and the name there.
    File(PathBuf, &'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File(path, name) => write!(f, "{name} in {}", path.display()),
        }
    }
}

/// A value as it was written.
#[derive(Clone)]
pub struct Given {
    pub text: String,
    pub origin: Origin,
}

/// What was given, by setting; the strongest source only.
#[derive(Clone, Default)]
pub struct Layers(BTreeMap<&'static str, Given>);

impl Layers {
    /// Reads all three sources.
    pub fn read(
        cli: &CliArgs,
        env: impl IntoIterator<Item = (String, String)>,
        cwd: &Path,
    ) -> Result<Self, ConfigError> {
        let env: BTreeMap<String, String> = env.into_iter().collect();
        let mut layers = Self::default();
        let file = cli.config.clone().or_else(|| env.get("DUEPOST_CONFIG").map(PathBuf::from));
        if file.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            let origin = match cli.config {
                Some(_) => Origin::Flag("config".to_owned()),
                None => Origin::Variable("DUEPOST_CONFIG".to_owned()),
            };
            return Err(ConfigError::Empty(origin));
        }
        layers.read_file(file, cwd)?;
        layers.read_env(&env)?;
        for (name, text) in &cli.values {
            layers.put(name, text, Origin::Flag(name.replace('_', "-")));
        }
        match layers.0.values().find(|given| given.text.is_empty()) {
            Some(empty) => Err(ConfigError::Empty(empty.origin.clone())),
            None => Ok(layers),
        }
    }

    /// What was given for a setting.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.0.get(name)
    }

    fn put(&mut self, name: &'static str, text: &str, origin: Origin) {
        self.0.insert(name, Given { text: text.to_owned(), origin });
    }

    fn read_env(&mut self, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let services = kubernetes_services(env);
        for (variable, text) in env {
            let setting = SETTINGS.iter().find(|s| s.variable() == *variable);
            if let Some(setting) = setting {
                // an empty SSL_CERT_FILE is as good as none: it is not ours to be strict about
                if variable.starts_with(PREFIX) || !text.is_empty() {
                    self.put(setting.name, text, Origin::Variable(variable.clone()));
                }
            } else if variable.to_ascii_uppercase().starts_with(PREFIX)
                && !OTHER_VARIABLES.contains(&variable.as_str())
                && !services.iter().any(|service| comes_from_service(variable, service))
            {
                let meant = settings::closest(&variable[PREFIX.len()..]).map(settings::Setting::variable);
                return Err(ConfigError::Unknown {
                    what: "variable",
                    name: variable.clone(),
                    place: "the environment".into(),
                    meant,
                });
            }
        }
        Ok(())
    }

    fn read_file(&mut self, named: Option<PathBuf>, cwd: &Path) -> Result<(), ConfigError> {
        let path = named.clone().unwrap_or_else(|| PathBuf::from("duepost.toml"));
        let text = match std::fs::read_to_string(cwd.join(&path)) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(()),
            Err(cause) => return Err(ConfigError::ReadFile { path, cause }),
        };
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            // only where, not what: the line may hold a password
            let at = e.span().map_or(0, |span| span.start);
            let line = 1 + text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
            ConfigError::Syntax { path: path.clone(), line }
        })?;
        for (name, value) in table {
            let Some(setting) = settings::find(&name) else {
                let meant = settings::closest(&name).map(|s| s.name.to_owned());
                let place = path.display().to_string();
                return Err(ConfigError::Unknown { what: "setting", name, place, meant });
            };
            let origin = Origin::File(path.clone(), setting.name);
            let text = as_text(&value, setting.kind).ok_or_else(|| ConfigError::Value {
                name: setting.name,
                origin: origin.clone(),
                shown: String::new(),
                wrong: "is neither a text, a number, nor true or false (allowed_targets and keys may be lists)"
                    .to_owned(),
            })?;
            self.put(setting.name, &text, origin);
        }
        Ok(())
    }
}

/// A TOML value as it would be written in the environment.
fn as_text(value: &toml::Value, kind: settings::Kind) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        // with its point, so that 1.0 is not taken for a whole number
        toml::Value::Float(number) => Some(format!("{number:?}")),
        toml::Value::Boolean(switch) => Some(switch.to_string()),
        toml::Value::Array(items) if kind == settings::Kind::List => {
            let items: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            items.map(|items| items.join(","))
        }
        toml::Value::Array(items) if items.iter().all(toml::Value::is_table) => serde_json::to_string(items).ok(),
        _ => None,
    }
}

/// Services whose addresses Kubernetes put into our environment: one called `duepost` gives every pod `DUEPOST_PORT`,
/// `DUEPOST_SERVICE_HOST` and more, which nobody mistyped.
fn kubernetes_services(env: &BTreeMap<String, String>) -> Vec<&str> {
    if !env.contains_key("KUBERNETES_SERVICE_HOST") {
        return Vec::new();
    }
    env.keys().filter_map(|name| name.strip_suffix("_SERVICE_HOST")).collect()
}

fn comes_from_service(variable: &str, service: &str) -> bool {
    let rest = variable.strip_prefix(service).unwrap_or_default();
    rest.starts_with("_SERVICE_") || rest == "_PORT" || rest.starts_with("_PORT_")
}
