//! Takes values out of the layers, one setting at a time, and remembers what it saw for `config show`.

use std::path::Path;

use super::{
    ConfigError, Mode, Origin, PORTS, RedisNodes, RedisUrl, SecretKey, SentinelSettings,
    layers::{Given, Layers},
    mask_userinfo, parse,
    parse::Wrong,
    settings::{self, Kind, Setting},
};
use crate::keys::Keys;

/// A setting as `config show` prints it.
#[derive(Debug, Clone)]
pub struct Row {
    pub setting: &'static Setting,
    /// As it would be written, masked; `None` if there is no value.
    shown: Option<String>,
    pub origin: Origin,
}

impl Row {
    /// A line of TOML, or a comment if there is no value.
    pub fn line(&self) -> String {
        let name = self.setting.name;
        match (&self.shown, self.setting.kind) {
            (None, _) => format!("# {name} ="),
            (Some(text), Kind::Number | Kind::Switch) => format!("{name} = {text}"),
            (Some(text), _) => format!("{name} = {}", toml::Value::from(text.as_str())),
        }
    }
}

/// Takes values out of the layers and notes what it saw.
pub struct Reader<'a> {
    pub mode: Mode,
    pub cwd: &'a Path,
    pub layers: Layers,
    pub rows: Vec<Row>,
}

impl Reader<'_> {
    /// A setting that has a default. The default goes through the same parser, so it is written as a user would.
    pub fn value<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, Wrong>) -> Result<T, ConfigError> {
        let default = settings::find(name).and_then(|s| s.default_for(self.mode)).unwrap_or_default();
        let given = self.layers.get(name).cloned();
        let given = given.unwrap_or_else(|| Given { text: default.to_owned(), origin: Origin::Default });
        self.parsed(name, &given, parse)
    }

    /// A setting without a default.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Result<Option<T>, ConfigError> {
        match self.layers.get(name).cloned() {
            Some(given) => self.parsed(name, &given, parse).map(Some),
            None => {
                self.note(name, None, Origin::Default);
                Ok(None)
            }
        }
    }

    /// A whole number from 1.
    pub fn count(&mut self, name: &'static str, most: u32) -> Result<usize, ConfigError> {
        self.value(name, |text| parse::number(text, 1..=most)).map(|n| n as usize)
    }

    fn parsed<T>(
        &mut self,
        name: &'static str,
        given: &Given,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Result<T, ConfigError> {
        let setting = settings::find(name);
        let secret = setting.is_some_and(|s| s.secret);
        match parse(&given.text) {
            Ok(value) => {
                let shown = match setting {
                    Some(s) if s.secret => masked(s, &given.text),
                    _ => given.text.clone(),
                };
                self.note(name, Some(shown), given.origin.clone());
                Ok(value)
            }
            Err(wrong) => {
                let shown = if secret { String::new() } else { format!("{:?} ", clipped(&given.text)) };
                Err(ConfigError::Value { name, origin: given.origin.clone(), shown, wrong })
            }
        }
    }

    /// Both sources of API keys together.
    pub fn keys(&mut self) -> Result<Option<Keys>, ConfigError> {
        let cwd = self.cwd.to_owned();
        let text = self.optional("keys_file", |path| {
            std::fs::read_to_string(cwd.join(path)).map_err(|e| format!("cannot be read: {e}"))
        })?;
        let from_file = text.map(|text| Keys::from_toml(&text)).transpose();
        let from_file = from_file.map_err(|cause| ConfigError::Keys { origin: self.origin("keys_file"), cause })?;
        let json = self.optional("keys", |json| Ok(json.to_owned()))?;
        let given = json.map(|json| Keys::from_json(&json)).transpose();
        let given = given.map_err(|cause| ConfigError::Keys { origin: self.origin("keys"), cause })?;
        Ok(match (given, from_file) {
            (Some(given), Some(from_file)) => Some(given.and(from_file)),
            (one, other) => one.or(other),
        })
    }

    /// The key that seals secrets, from one of its two sources.
    pub fn secret_key(&mut self) -> Result<Option<SecretKey>, ConfigError> {
        let cwd = self.cwd.to_owned();
        let given = self.optional("secret_key", parse::key_of_32_bytes)?;
        let from_file = self.optional("secret_key_file", |path| {
            let text = std::fs::read_to_string(cwd.join(path)).map_err(|e| format!("cannot be read: {e}"))?;
            parse::key_of_32_bytes(&text).map_err(|wrong| format!("holds something that {wrong}"))
        })?;
        if given.is_some() && from_file.is_some() {
            let (one, other) = (self.origin("secret_key"), self.origin("secret_key_file"));
            let text = format!("secret_key ({one}) and secret_key_file ({other}) exclude each other");
            return Err(ConfigError::Contradiction(text));
        }
        Ok(given.or(from_file).map(SecretKey))
    }

    /// The Sentinels with all that is about them.
    pub fn sentinel(&mut self) -> Result<Option<SentinelSettings>, ConfigError> {
        let nodes = self.optional("redis_sentinel", |text| RedisNodes::parse(text, PORTS.1))?;
        let text = |text: &str| Ok(text.to_owned());
        let master = self.optional("redis_sentinel_master", text)?;
        let user = self.optional("redis_sentinel_user", text)?;
        let password = self.optional("redis_sentinel_password", text)?;
        let refuse = |text: String| Err(ConfigError::Contradiction(text));
        match (nodes, master) {
            (Some(_), None) => {
                let origin = self.origin("redis_sentinel");
                refuse(format!(
                    "redis_sentinel ({origin}) needs redis_sentinel_master: what the Sentinels call the Redis"
                ))
            }
            (Some(_), _) if user.is_some() && password.is_none() => {
                let origin = self.origin("redis_sentinel_user");
                refuse(format!("redis_sentinel_user ({origin}) needs redis_sentinel_password"))
            }
            (Some(nodes), Some(master)) => Ok(Some(SentinelSettings { nodes, master, user, password })),
            (None, _) => {
                let names = ["redis_sentinel_master", "redis_sentinel_user", "redis_sentinel_password"];
                match names.into_iter().find(|name| self.layers.get(name).is_some()) {
                    Some(name) => {
                        refuse(format!("{name} ({}) means nothing without redis_sentinel", self.origin(name)))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// What a default came down to beside other settings, so that `config show` shows what holds.
    pub fn amend(&mut self, name: &str, shown: String) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.setting.name == name) {
            row.shown = Some(shown);
        }
    }

    fn note(&mut self, name: &str, shown: Option<String>, origin: Origin) {
        if let Some(setting) = settings::find(name) {
            self.rows.push(Row { setting, shown, origin });
        }
    }

    pub fn origin(&self, name: &str) -> Origin {
        self.layers.get(name).map_or(Origin::Default, |given| given.origin.clone())
    }
}

/// Addresses of Redis without their password; any other secret not at all.
fn masked(setting: &Setting, text: &str) -> String {
    let shown = match setting.name {
        "redis" => RedisUrl::parse(text).map(|url| url.to_string()),
        "redis_cluster" => RedisNodes::parse(text, PORTS.0).map(|nodes| nodes.to_string()),
        "redis_sentinel" => RedisNodes::parse(text, PORTS.1).map(|nodes| nodes.to_string()),
        _ => Err(String::new()),
    };
    shown.unwrap_or_else(|_| "***".to_owned())
}

/// Enough of a wrong value to recognise it; with a password masked, should a URL have come to the wrong place.
fn clipped(text: &str) -> String {
    mask_userinfo(text).chars().take(60).collect()
}
