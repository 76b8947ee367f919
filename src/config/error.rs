//! Why the service does not start.

use std::path::PathBuf;

use super::Origin;
use crate::keys::KeysError;

/// Why the service does not start. Holds no secret: values of secret settings are left out.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A name that no setting has.
    #[error("unknown {what} {name} in {place}{}", .meant.as_ref().map(|m| format!("; did you mean {m}?")).unwrap_or_default())]
    Unknown {
        /// `variable` or `setting`.
        what: &'static str,
        /// As it was written.
        name: String,
        /// Where it was written.
        place: String,
        /// What it resembles.
        meant: Option<String>,
    },
    /// An empty value, which some tools take for none and others for a value.
    #[error("{0} is empty: give it a value or leave it out")]
    Empty(Origin),
    /// A value that is wrong by itself.
    #[error("setting {name} ({origin}): {shown}{wrong}")]
    Value {
        /// The setting.
        name: &'static str,
        /// Where the value came from.
        origin: Origin,
        /// The value in quotes and a blank, or nothing if it may be a secret.
        shown: String,
        /// What is wrong.
        wrong: String,
    },
    /// Not UTF-8.
    #[error("variable {0} is not UTF-8")]
    Encoding(String),
    /// The TOML file cannot be read.
    #[error("cannot read the settings file {}: {cause}", path.display())]
    ReadFile {
        /// As it was given.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The TOML file is not TOML.
    #[error("{} is not TOML, see line {line}", path.display())]
    Syntax {
        /// As it was given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// API keys cannot be read.
    #[error("the list of API keys ({origin}) {cause}")]
    Keys {
        /// Where the keys or the path of their file came from.
        origin: Origin,
        /// What is wrong.
        cause: KeysError,
    },
    /// Settings that exclude each other.
    #[error("{0}")]
    Contradiction(String),
}
