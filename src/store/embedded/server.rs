//! Which server binary to run, and whether it is new enough.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The scripts need nothing newer; anything older is not tested.
pub const OLDEST: Version = Version(6, 2, 0);
/// From here on the append-only file is a directory that older servers do not see.
pub const APPEND_ONLY_DIR_SINCE: Version = Version(7, 0, 0);

const NAMES: [&str; 2] = ["redis-server", "valkey-server"];
const BEYOND_PATH: [&str; 2] = ["/usr/local/bin", "/opt/homebrew/bin"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16, u16, u16);

impl Version {
    /// `7.0.15`, also with something behind it (`8.0.0-rc1`).
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let mut next = || {
            let part = parts.next()?;
            part[..part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len())].parse().ok()
        };
        Some(Self(next()?, next()?, next()?))
    }

    /// From `Redis server v=7.0.15 sha=00000000:0 malloc=…`.
    fn from_banner(banner: &str) -> Option<Self> {
        banner.split_whitespace().find_map(|word| word.strip_prefix("v=")).and_then(Self::parse)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A server that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub path: PathBuf,
    pub version: Version,
}

impl Server {
    /// `redis-check-aof` of `redis-server`, from the same place.
    pub fn check_aof(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with("-server") {
            self.path.with_file_name(name.replace("-server", "-check-aof")).display().to_string()
        } else {
            "redis-check-aof".into()
        }
    }
}

/// No usable server. Its text is the whole answer to "why does it not start, and what now".
#[derive(Debug, PartialEq, Eq)]
pub struct NotFound {
    named: bool,
    seen: Vec<(PathBuf, String)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version(major, minor, _) = OLDEST;
        writeln!(f, "no Redis configured and no redis-server (or valkey-server) >= {major}.{minor} found")?;
        if self.named {
            writeln!(f, "  looked for: $DUEPOST_REDIS_SERVER_BIN (it is set, so nothing else counts)")?;
        } else {
            writeln!(
                f,
                "  looked for: $DUEPOST_REDIS_SERVER_BIN, redis-server, valkey-server in PATH, {}",
                BEYOND_PATH.join(", ")
            )?;
        }
        for (path, why_not) in &self.seen {
            writeln!(f, "  found: {} {why_not}", path.display())?;
        }
        write!(
            f,
            "fix one of:  make run  |  sudo apt-get install redis-server  |  --redis redis://host:6379  |  docker compose up"
        )
    }
}

/// The first usable server: the one named by the operator and no other, or the first in the search order.
pub fn find(named: Option<&Path>) -> Result<Server, NotFound> {
    match named {
        Some(path) => first_usable([path.to_owned()], true),
        None => first_usable(candidates(env::var_os("PATH"), &BEYOND_PATH).filter(|path| path.is_file()), false),
    }
}

fn candidates(path: Option<OsString>, beyond: &[&str]) -> impl Iterator<Item = PathBuf> {
    let mut dirs: Vec<PathBuf> = path.iter().flat_map(env::split_paths).filter(|dir| dir.is_absolute()).collect();
    dirs.extend(beyond.iter().map(PathBuf::from));
    NAMES.into_iter().flat_map(move |name| dirs.iter().map(|dir| dir.join(name)).collect::<Vec<_>>())
}

fn first_usable(candidates: impl IntoIterator<Item = PathBuf>, named: bool) -> Result<Server, NotFound> {
    let mut seen = Vec::new();
    for path in candidates {
        match version_of(path.as_os_str()) {
            Ok(version) if version >= OLDEST => return Ok(Server { path, version }),
            Ok(version) => seen.push((path, format!("{version} (too old)"))),
            Err(why_not) => seen.push((path, why_not)),
        }
    }
    Err(NotFound { named, seen })
}

fn version_of(binary: &OsStr) -> Result<Version, String> {
    let output = Command::new(binary)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("(cannot be run: {error})"))?;
    Version::from_banner(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| "(tells no version)".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_banner_of_either_server() {
        let of = Version::from_banner;
        assert_eq!(of("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"), Some(Version(7, 0, 15)));
        assert_eq!(of("Valkey server v=8.1.1 sha=0 bits=64"), Some(Version(8, 1, 1)));
        assert_eq!(of("Redis server v=255.255.255 sha=0"), Some(Version(255, 255, 255)));
        assert_eq!(of("Redis server v=8.0.0-rc1"), Some(Version(8, 0, 0)));
        assert_eq!(of("rev=7.0.15"), None, "a word of its own");
        assert_eq!(of("Redis server v=7.0"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn the_oldest_usable_version_is_6_2() {
        assert!(Version(6, 2, 0) >= OLDEST && Version(7, 0, 0) >= OLDEST);
        assert!(Version(6, 0, 16) < OLDEST && Version(5, 9, 9) < OLDEST);
    }

    #[test]
    fn redis_comes_before_valkey_and_path_before_the_rest() {
        let found: Vec<_> = candidates(Some("/a:relative::/b".into()), &["/c"]).collect();
        let want = ["/a/redis-server", "/b/redis-server", "/c/redis-server"];
        assert_eq!(found[..3], want.map(PathBuf::from));
        assert_eq!(found[3..], want.map(|path| PathBuf::from(path.replace("redis", "valkey"))));
    }

    #[test]
    fn a_missing_server_is_told_with_the_ways_out() {
        let nothing = first_usable([], false).unwrap_err();
        assert_eq!(
            nothing.to_string(),
            "no Redis configured and no redis-server (or valkey-server) >= 6.2 found\n  \
             looked for: $DUEPOST_REDIS_SERVER_BIN, redis-server, valkey-server in PATH, /usr/local/bin, /opt/homebrew/bin\n\
             fix one of:  make run  |  sudo apt-get install redis-server  |  --redis redis://host:6379  |  docker compose up"
        );
    }

    #[test]
    fn what_was_seen_and_not_taken_is_told_too() {
        let seen = vec![("/usr/bin/redis-server".into(), format!("{} (too old)", Version(6, 0, 16)))];
        let text = NotFound { named: false, seen }.to_string();
        assert_eq!(text.lines().nth(2), Some("  found: /usr/bin/redis-server 6.0.16 (too old)"));
    }

    #[test]
    fn the_repair_tool_is_the_servers_own() {
        let tool = |path: &str| Server { path: path.into(), version: OLDEST }.check_aof();
        assert_eq!(tool("/opt/valkey/valkey-server"), "/opt/valkey/valkey-check-aof");
        assert_eq!(tool("/opt/my-redis"), "redis-check-aof");
    }
}
