//! Endpoints: where bytes come from or go to, and how they are written on the command line.
//!
//! An argument of a verb on records is `-`, `nodes:PATTERN`, `client:PATH`, `volume:NAME/PATH`, `table:NAME` or a path.
//! An argument of a transfer may also name another machine: by a colon before the first slash, as for scp and rsync, or
//! by `ssh://`. Arguments are raw bytes: nothing in them is unescaped.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thalweg_base::units::parse_bytes;
use thalweg_volume::VolumePath;

use crate::{Asked, Result};

/// Begins the URL of a file of a volume, as libraries for Python write it.
const VOLUMES: &[u8] = b"thalweg://";

/// Where bytes come from or go to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// The path of a file or, in a transfer, of a file or a directory tree.
    Path(PathBuf),
    /// Standard input or output, written `-`.
    #[default]
    Standard,
    /// Files that each node of a cluster has for itself, written `nodes:PATTERN`.
    Nodes(PathBuf),
    /// A file of this client that nodes of a cluster read or write, written `client:PATH`.
    Client(PathBuf),
    /// A file of a volume, written `volume:NAME/PATH` or `thalweg://NAME/PATH`.
    Volume(VolumePath),
    /// Records of a table of a cluster, written `table:NAME` or `table:NAME@LOW..HIGH`.
    Table(TablePart),
    /// This many zero bytes, written `zero:SIZE`.
    Zeros(u64),
    /// Discards all bytes, written `null:`.
    Null,
    /// A path, zeros or nothing on a host of a cluster, written `HOST:/PATH`, `HOST:zero:SIZE` or `HOST:null:`.
    Host(String, Box<Endpoint>),
    /// A path on a host that ssh connects to, written `ssh://[USER@]HOST[:PORT]/PATH`.
    Ssh(SshHost, PathBuf),
}

/// All records of a table of a cluster, or those with the keys of an interval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TablePart {
    /// The name of the table.
    pub name: String,
    /// `LOW..HIGH`, for the keys from LOW up to but not including HIGH: text in which `\xHH` is any byte.
    pub keys: Option<String>,
    /// The directory of the identity for the cluster; `None` for the user's own.
    pub identity: Option<PathBuf>,
    /// The name that the cluster must have.
    pub cluster: Option<String>,
}

impl TablePart {
    /// Parses `NAME` or `NAME@LOW..HIGH`.
    fn of(text: &[u8]) -> TablePart {
        let text = String::from_utf8_lossy(text);
        let (name, keys) = text.split_once('@').map_or((&*text, None), |(name, keys)| (name, Some(keys)));
        TablePart { name: name.into(), keys: keys.map(String::from), ..TablePart::default() }
    }
}

/// A host that ssh connects to. For what is not given, ssh uses the user's own configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// The user who logs in.
    pub user: Option<String>,
    /// The host, or its alias in the configuration of ssh.
    pub host: String,
    /// The port of its ssh server.
    pub port: Option<u16>,
}

impl fmt::Display for SshHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user}@{}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl Endpoint {
    /// The path by which this machine opens it (`standard` for `-`), or an error if it is on another machine.
    pub(crate) fn here<'a>(&'a self, standard: &'a str) -> Result<&'a Path> {
        match self {
            Endpoint::Path(path) if path.as_os_str().is_empty() => Err(Asked::NoName.into()),
            Endpoint::Path(path) => self.check().map(|()| path.as_path()),
            Endpoint::Volume(path) => Ok(path.as_path()),
            Endpoint::Standard => Ok(Path::new(standard)),
            other => Err(Asked::Elsewhere(other.clone()).into()),
        }
    }

    /// The path of a file of this machine or of a volume.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Endpoint::Path(path) => Some(path),
            Endpoint::Volume(path) => Some(path.as_path()),
            _ => None,
        }
    }

    /// The path that this machine reads it from, or an error if it is on another machine.
    pub(crate) fn input_path(&self) -> Result<&Path> {
        self.here("/dev/stdin")
    }

    /// Whether only the nodes of a cluster can read or write it.
    pub fn is_of_cluster(&self) -> bool {
        matches!(self, Endpoint::Nodes(_) | Endpoint::Client(_))
    }

    /// Fails for the URL of something that no verb can read or write, which is a path otherwise.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Endpoint::Path(path) => match scheme(path.as_os_str().as_bytes()) {
                Some(scheme) => Err(Asked::Scheme(path.display().to_string(), scheme.into()).into()),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Parses an argument as an endpoint of a transfer.
    ///
    /// # Errors
    /// [`BadEndpoint`] if the argument cannot be parsed.
    pub fn of_transfer(word: &OsStr) -> std::result::Result<Endpoint, BadEndpoint> {
        if word == "-" {
            return Ok(Endpoint::Standard);
        }
        let bytes = word.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"ssh://") {
            return ssh(rest).ok_or_else(|| BadEndpoint::Ssh(word.to_string_lossy().into()));
        }
        if bytes.starts_with(VOLUMES) {
            return Ok(Endpoint::from(word));
        }
        if let Some(scheme) = scheme(bytes) {
            return Err(BadEndpoint::Scheme(word.to_string_lossy().into(), scheme.into()));
        }
        let head = &bytes[..bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len())];
        let Some(colon) = head.iter().position(|b| *b == b':') else {
            return Ok(Endpoint::Path(PathBuf::from(word)));
        };
        match (&head[..colon], &bytes[colon + 1..]) {
            (b"volume" | b"table", _) => Ok(Endpoint::from(word)),
            (b"null", b"") => Ok(Endpoint::Null),
            (b"zero", size) => zeros(size),
            (host, rest) => {
                let host = String::from_utf8_lossy(host).into_owned();
                let end = match (rest, rest.strip_prefix(b"zero:")) {
                    (b"null:", _) => Endpoint::Null,
                    (_, Some(size)) => zeros(size)?,
                    ([b'/', ..], _) => Endpoint::Path(path(rest)),
                    _ => {
                        return Err(BadEndpoint::NoPath { word: word.to_string_lossy().into(), host });
                    }
                };
                Ok(Endpoint::Host(host, Box::new(end)))
            }
        }
    }
}

/// Parses an argument of a verb on records.
impl From<&OsStr> for Endpoint {
    fn from(word: &OsStr) -> Endpoint {
        let bytes = word.as_bytes();
        let by_url = bytes.strip_prefix(VOLUMES).map(|rest| [b"volume:", rest].concat());
        let volume = by_url.as_deref().map_or(word, OsStr::from_bytes);
        if let Some(path) = VolumePath::of(volume) {
            return Endpoint::Volume(path);
        }
        if let Some(table) = bytes.strip_prefix(b"table:") {
            return Endpoint::Table(TablePart::of(table));
        }
        match (bytes.strip_prefix(b"nodes:"), bytes.strip_prefix(b"client:")) {
            _ if word == "-" => Endpoint::Standard,
            (Some(pattern), _) => Endpoint::Nodes(path(pattern)),
            (_, Some(name)) => Endpoint::Client(path(name)),
            (None, None) => Endpoint::Path(path(bytes)),
        }
    }
}

/// Parses an argument of a verb on records.
impl From<&str> for Endpoint {
    fn from(word: &str) -> Endpoint {
        Endpoint::from(OsStr::new(word))
    }
}

/// The file at this path, even if the path looks like another kind of endpoint.
impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Endpoint {
        Endpoint::Path(path.into())
    }
}

/// The file at this path, even if the path looks like another kind of endpoint.
impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Endpoint {
        Endpoint::Path(path)
    }
}

/// As written on the command line.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Path(path) => write!(f, "{}", path.display()),
            Endpoint::Standard => f.write_str("-"),
            Endpoint::Nodes(path) => write!(f, "nodes:{}", path.display()),
            Endpoint::Client(path) => write!(f, "client:{}", path.display()),
            Endpoint::Volume(path) => write!(f, "{}", path.as_path().display()),
            Endpoint::Table(TablePart { name, keys: None, .. }) => write!(f, "table:{name}"),
            Endpoint::Table(TablePart { name, keys: Some(keys), .. }) => write!(f, "table:{name}@{keys}"),
            Endpoint::Zeros(bytes) => write!(f, "zero:{bytes}"),
            Endpoint::Null => f.write_str("null:"),
            Endpoint::Host(host, end) => write!(f, "{host}:{end}"),
            Endpoint::Ssh(host, path) => {
                let port = host.port.map_or(String::new(), |port| format!(":{port}"));
                write!(f, "ssh://{host}{port}{}", path.display())
            }
        }
    }
}

/// Why an argument is not an endpoint of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadEndpoint {
    /// It begins with `ssh://`, but names no host or no path.
    #[error("'{0}' is not where ssh could go; write ssh://[USER@]HOST[:PORT]/PATH")]
    Ssh(String),
    /// It names a host, but no absolute path.
    #[error(
        "'{word}' names host {host} and no path from its root; write {host}:/PATH, or ./{word} for a file"
    )]
    NoPath {
        /// The argument.
        word: String,
        /// The host.
        host: String,
    },
    /// A URL of something that no verb can read or write.
    #[error("{}", not_yet(.0, .1))]
    Scheme(String, String),
    /// The text after `zero:` is not a size.
    #[error("{0}")]
    Size(String),
}

/// The scheme of a URL, which may be a path of this machine only with `./` before it.
fn scheme(word: &[u8]) -> Option<&str> {
    let at = word.windows(3).position(|some| some == b"://")?;
    let scheme = str::from_utf8(&word[..at]).ok()?;
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    (scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_scheme)).then_some(scheme)
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Says that there is no way to these files.
pub(crate) fn not_yet(word: &str, scheme: &str) -> String {
    match scheme {
        "file" => format!("'{word}': write the path alone, without file://"),
        _ => format!("'{word}': {scheme}:// cannot be read or written yet; copy it to or from a file"),
    }
}

fn zeros(size: &[u8]) -> std::result::Result<Endpoint, BadEndpoint> {
    parse_bytes(&String::from_utf8_lossy(size)).map(Endpoint::Zeros).map_err(BadEndpoint::Size)
}

/// Parses the text after `ssh://`.
fn ssh(rest: &[u8]) -> Option<Endpoint> {
    let (head, at) = rest.split_at(rest.iter().position(|b| *b == b'/')?);
    let head = str::from_utf8(head).ok()?;
    let (user, host) = match head.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, head),
    };
    let (host, port) = match host.strip_prefix('[') {
        // An IPv6 address contains colons.
        Some(rest) => {
            rest.split_once(']').map(|(host, port)| (host, port.strip_prefix(':').or(Some(port))))?
        }
        None => host.split_once(':').map_or((host, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port? {
        "" => None,
        port => Some(port.parse().ok().filter(|port| *port > 0)?),
    };
    // ssh would take such an argument for a flag, or interpret it by its configuration.
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('-')
            && !word.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if !is_word(host) || !user.is_none_or(is_word) {
        return None;
    }
    let host = SshHost { user: user.map(String::from), host: host.to_string(), port };
    Some(Endpoint::Ssh(host, path(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_file_of_a_volume_or_is_refused() {
        let reel = Endpoint::Volume(VolumePath::of("volume:v/d/a".as_ref()).unwrap());
        assert_eq!(Endpoint::from("thalweg://v/d/a"), reel);
        assert_eq!(Endpoint::of_transfer("thalweg://v/d/a".as_ref()), Ok(reel));
        for (word, scheme) in [("s3://b/k", "s3"), ("https://h/p", "https"), ("file:///p", "file")] {
            let refused = BadEndpoint::Scheme(word.into(), scheme.into());
            assert_eq!(Endpoint::of_transfer(word.as_ref()), Err(refused));
            assert!(Endpoint::from(word).here("-").is_err() && Endpoint::from(word).check().is_err());
        }
        for path in ["./s3://b/k", "a b://c", "://c", "d/s3://b"] {
            assert!(Endpoint::from(path).check().is_ok(), "{path}");
        }
    }

    #[test]
    fn a_word_for_records_names_no_other_machine() {
        for (word, means) in [
            ("-", Endpoint::Standard),
            ("nodes:/d/*", Endpoint::Nodes("/d/*".into())),
            ("client:a", Endpoint::Client("a".into())),
            ("volume:v/d/a", Endpoint::Volume(VolumePath::of("volume:v/d/a".as_ref()).unwrap())),
            ("table:t", Endpoint::Table(TablePart { name: "t".into(), ..TablePart::default() })),
            (
                "table:t@a@..b",
                Endpoint::Table(TablePart {
                    name: "t".into(),
                    keys: Some("a@..b".into()),
                    ..TablePart::default()
                }),
            ),
            ("h:/p", Endpoint::Path("h:/p".into())),
            ("null:", Endpoint::Path("null:".into())),
        ] {
            assert_eq!(Endpoint::from(word), means);
            assert_eq!(means.to_string(), word);
        }
    }

    #[test]
    fn where_ssh_could_not_go_is_refused() {
        let host = |user: Option<&str>, host: &str, port| {
            let host = SshHost { user: user.map(String::from), host: host.into(), port };
            Ok(Endpoint::Ssh(host, "/p".into()))
        };
        for (word, means) in [
            ("ssh://h/p", host(None, "h", None)),
            ("ssh://u@h:22/p", host(Some("u"), "h", Some(22))),
            ("ssh://u@x@h/p", host(Some("u@x"), "h", None)),
            ("ssh://[::1]/p", host(None, "::1", None)),
            ("ssh://u@[fe80::1]:2222/p", host(Some("u"), "fe80::1", Some(2222))),
        ] {
            assert_eq!(Endpoint::of_transfer(word.as_ref()), means, "{word}");
        }
        for word in [
            "ssh://",
            "ssh://h",
            "ssh:///p",
            "ssh://h:0/p",
            "ssh://h:x/p",
            "ssh://h:65536/p",
            "ssh://-oX/p",
            "ssh://@h/p",
            "ssh://-l@h/p",
            "ssh://a b/p",
            "ssh://[::1/p",
            "ssh://[::1]x/p",
        ] {
            let why = Endpoint::of_transfer(word.as_ref()).expect_err(word).to_string();
            assert!(why.contains("not where ssh could go"), "{why}");
        }
    }
}
