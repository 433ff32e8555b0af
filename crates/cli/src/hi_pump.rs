//! What the words and flags of `pump` mean together: where its ends are.
//!
//! Law: a colon before the first slash tells that a word is more than a path, as it does to scp and rsync; `ssh://` tells
//! of ssh. A word is taken byte by byte: nothing in it is unescaped.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use thalweg::{PumpEnd, PumpOptions, SshHost};
use thalweg_node::SshOptions;

use crate::hi::Job;
use crate::low::LowArgs;
use crate::parse::Usage;
use crate::{hi_nodes, values};

/// What is called at the other end of ssh, unless said otherwise.
const THERE: &str = "thalweg";

/// `pump`.
pub(crate) fn pumped(low: LowArgs) -> Result<Job, Usage> {
    let (sources, dest) = ends(&low)?;
    let is_node = |end: &PumpEnd| matches!(end, PumpEnd::Node(..));
    let far = is_node(&dest) || sources.iter().any(is_node);
    let identity = if far { Some(hi_nodes::identity(&low)?) } else { None };
    let ssh = over_ssh(&low, &sources, &dest)?;
    if low.verify && low.no_checksum {
        return Err(Usage(
            "--verify compares checksums, and --no-checksum takes none; leave one of them out".into(),
        ));
    }
    let options = PumpOptions {
        sources,
        dest,
        streams: low.streams,
        limit: low.limit,
        resume: low.resume,
        verify: low.verify,
        no_disk: low.no_disk,
        checksum: !low.no_checksum,
        io: low.io,
    };
    Ok(match (identity, ssh) {
        (_, Some(ssh)) => Job::PumpSsh(ssh, options),
        (Some(identity), None) => Job::PumpFar(identity, options),
        (None, None) => Job::Pump(options),
    })
}

fn ends(low: &LowArgs) -> Result<(Vec<PumpEnd>, PumpEnd), Usage> {
    match (low.no_disk, &low.words[..]) {
        (Some(_), []) => Ok((Vec::new(), PumpEnd::Null)),
        (Some(_), [dest]) if matches!(end(dest)?, PumpEnd::Node(..)) => Ok((Vec::new(), end(dest)?)),
        (Some(_), [word, ..]) => {
            let word = word.to_string_lossy();
            Err(Usage(format!(
                "--no-disk goes from memory to nowhere, here or at HOST:null:; leave out '{word}', or it"
            )))
        }
        (None, [sources @ .., dest]) if !sources.is_empty() => {
            let sources = sources.iter().map(|word| end(word)).collect::<Result<Vec<_>, Usage>>()?;
            Ok((sources, end(dest)?))
        }
        (None, _) => Err(Usage("pump needs at least two words, SOURCE and DEST ('-' is a stream)".into())),
    }
}

/// How ssh is used, if an end is where it goes.
fn over_ssh(low: &LowArgs, sources: &[PumpEnd], dest: &PumpEnd) -> Result<Option<SshOptions>, Usage> {
    let ssh_of = |end: &PumpEnd| match end {
        PumpEnd::Ssh(host, _) => Some(host.clone()),
        _ => None,
    };
    let from: Vec<Option<SshHost>> = sources.iter().map(ssh_of).collect();
    let is_from = from.iter().any(Option::is_some);
    let why = match (is_from, ssh_of(dest)) {
        (false, None) if low.ssh.is_some() || low.there.is_some() || low.through_ssh => {
            "--ssh, --there and --through-ssh are for an end that is ssh://HOST/PATH, and there is none"
        }
        (false, None) => return Ok(None),
        _ if sources.iter().chain([dest]).any(|end| matches!(end, PumpEnd::Node(..))) => {
            "one end is over ssh and one on a node; the other end of ssh:// is here, or over ssh too"
        }
        (true, _) if from.iter().any(|host| *host != from[0]) => {
            "all sources of a transfer are on one host; make one for each host"
        }
        _ => {
            let ssh = hi_nodes::ssh(low.ssh.as_deref());
            let there = low.there.clone().unwrap_or_else(|| THERE.into());
            return Ok(Some(SshOptions { ssh, there, through: low.through_ssh }));
        }
    };
    Err(Usage(why.into()))
}

fn end(word: &OsStr) -> Result<PumpEnd, Usage> {
    if word == "-" {
        return Ok(PumpEnd::Standard);
    }
    let bytes = word.as_bytes();
    if let Some(rest) = bytes.strip_prefix(b"ssh://") {
        return ssh_end(rest).ok_or_else(|| {
            let word = word.to_string_lossy();
            Usage(format!("'{word}' is not where ssh could go; write ssh://[USER@]HOST[:PORT]/PATH"))
        });
    }
    let head = &bytes[..bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len())];
    let Some(colon) = head.iter().position(|b| *b == b':') else {
        return Ok(PumpEnd::Path(PathBuf::from(word)));
    };
    match (&head[..colon], &bytes[colon + 1..]) {
        (b"null", b"") => Ok(PumpEnd::Null),
        (b"zero", size) => values::bytes(OsStr::from_bytes(size)).map(PumpEnd::Zeros).map_err(Usage),
        (host, rest) => {
            let host = String::from_utf8_lossy(host).into_owned();
            let end = match (rest, rest.strip_prefix(b"zero:")) {
                (b"null:", _) => PumpEnd::Null,
                (_, Some(size)) => {
                    values::bytes(OsStr::from_bytes(size)).map(PumpEnd::Zeros).map_err(Usage)?
                }
                ([b'/', ..], _) => PumpEnd::Path(PathBuf::from(OsStr::from_bytes(rest))),
                _ => {
                    let word = word.to_string_lossy();
                    return Err(Usage(format!(
                        "'{word}' names host {host} and no path from its root; write {host}:/PATH, or ./{word} for a file"
                    )));
                }
            };
            Ok(PumpEnd::Node(host, Box::new(end)))
        }
    }
}

/// What stands behind `ssh://`.
fn ssh_end(rest: &[u8]) -> Option<PumpEnd> {
    let (head, path) = rest.split_at(rest.iter().position(|b| *b == b'/')?);
    let head = str::from_utf8(head).ok()?;
    let (user, host) = match head.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, head),
    };
    let (host, port) = match host.strip_prefix('[') {
        // An address of version 6 has colons of its own.
        Some(rest) => {
            rest.split_once(']').map(|(host, port)| (host, port.strip_prefix(':').or(Some(port))))?
        }
        None => host.split_once(':').map_or((host, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port? {
        "" => None,
        port => Some(port.parse().ok().filter(|port| *port > 0)?),
    };
    // ssh would take such words for flags, or its settings for something else.
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('-')
            && !word.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if !is_word(host) || !user.is_none_or(is_word) {
        return None;
    }
    let host = SshHost { user: user.map(String::from), host: host.to_string(), port };
    Some(PumpEnd::Ssh(host, Box::new(PumpEnd::Path(PathBuf::from(OsStr::from_bytes(path))))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_could_not_go_to_is_refused() {
        let host = |user: Option<&str>, host: &str, port| {
            let host = SshHost { user: user.map(String::from), host: host.into(), port };
            Ok(PumpEnd::Ssh(host, Box::new(PumpEnd::Path("/p".into()))))
        };
        for (word, means) in [
            ("ssh://h/p", host(None, "h", None)),
            ("ssh://u@h:22/p", host(Some("u"), "h", Some(22))),
            ("ssh://u@x@h/p", host(Some("u@x"), "h", None)),
            ("ssh://[::1]/p", host(None, "::1", None)),
            ("ssh://u@[fe80::1]:2222/p", host(Some("u"), "fe80::1", Some(2222))),
        ] {
            assert_eq!(end(word.as_ref()).map_err(|usage| usage.0), means, "{word}");
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
            let why = end(word.as_ref()).expect_err(word).0;
            assert!(why.contains("not where ssh could go"), "{why}");
        }
    }
}
