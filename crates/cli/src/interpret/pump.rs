//! Interprets the arguments and flags of `pump`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use thalweg::{Endpoint, PumpOptions, SshHost, SshOptions, Transfer};

use thalweg_api::PumpChoice;

use super::nodes;
use crate::parse::Usage;
use crate::typed::TypedArgs;

/// The default program at the other end of ssh.
const THERE: &str = "thalweg";

/// `pump`.
pub(crate) fn pumped(args: TypedArgs) -> Result<Transfer, Usage> {
    let (sources, dest) = ends(&args)?;
    let is_node = |end: &Endpoint| matches!(end, Endpoint::Host(..));
    let far = is_node(&dest) || sources.iter().any(is_node);
    let identity = if far { nodes::identity(&args)? } else { PathBuf::new() };
    let ssh = over_ssh(&args, &sources, &dest)?;
    if args.verify && args.no_checksum {
        return Err(Usage(
            "--verify compares checksums, and --no-checksum takes none; leave one of them out".into(),
        ));
    }
    let options = PumpOptions {
        sources,
        dest,
        streams: args.streams,
        limit: args.limit,
        resume: args.resume,
        verify: args.verify,
        no_disk: args.no_disk,
        checksum: !args.no_checksum,
        strict: args.strict,
        choice: PumpChoice { files_from: files_from(&args)?, ..args.choice.clone() },
        io: args.io,
    };
    Ok(Transfer { options, identity, ssh })
}

/// The paths that a file lists.
fn files_from(args: &TypedArgs) -> Result<Option<Vec<String>>, Usage> {
    let Some(file) = &args.files_from else { return Ok(None) };
    let path = if file == "-" { Path::new("/dev/stdin") } else { Path::new(file) };
    let bytes = thalweg_io::small::read_named(path).map_err(|why| Usage(format!("--files-from: {why}")))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Usage(format!("--files-from: {} is not text in UTF-8", path.display())))?;
    let is_path = |line: &&str| !line.is_empty() && !line.starts_with(['#', ';']);
    Ok(Some(text.lines().filter(is_path).map(String::from).collect()))
}

fn ends(args: &TypedArgs) -> Result<(Vec<Endpoint>, Endpoint), Usage> {
    match (args.no_disk, &args.words[..]) {
        (Some(_), []) => Ok((Vec::new(), Endpoint::Null)),
        (Some(_), [dest]) if matches!(end(dest, args)?, Endpoint::Host(..)) => {
            Ok((Vec::new(), end(dest, args)?))
        }
        (Some(_), [word, ..]) => {
            let word = word.to_string_lossy();
            Err(Usage(format!(
                "--no-disk goes from memory to nowhere, here or at HOST:null:; leave out '{word}', or it"
            )))
        }
        (None, [sources @ .., dest]) if !sources.is_empty() => {
            let sources = sources.iter().map(|word| end(word, args)).collect::<Result<Vec<_>, Usage>>()?;
            Ok((sources, end(dest, args)?))
        }
        (None, _) => Err(Usage("pump needs at least two words, SOURCE and DEST ('-' is a stream)".into())),
    }
}

/// The options for ssh, if an end is reached by it.
fn over_ssh(args: &TypedArgs, sources: &[Endpoint], dest: &Endpoint) -> Result<SshOptions, Usage> {
    let ssh_of = |end: &Endpoint| match end {
        Endpoint::Ssh(host, _) => Some(host.clone()),
        _ => None,
    };
    let from: Vec<Option<SshHost>> = sources.iter().map(ssh_of).collect();
    let is_from = from.iter().any(Option::is_some);
    let why = match (is_from, ssh_of(dest)) {
        (false, None) if args.ssh.is_some() || args.there.is_some() || args.through_ssh => {
            "--ssh, --there and --through-ssh are for an end that is ssh://HOST/PATH, and there is none"
        }
        (false, None) => return Ok(SshOptions::default()),
        _ if sources.iter().chain([dest]).any(|end| matches!(end, Endpoint::Host(..))) => {
            "one end is over ssh and one on a node; the other end of ssh:// is here, or over ssh too"
        }
        (true, _) if from.iter().any(|host| *host != from[0]) => {
            "all sources of a transfer are on one host; make one for each host"
        }
        _ => {
            let ssh = nodes::ssh(args.ssh.as_deref());
            let there = args.there.clone().unwrap_or_else(|| THERE.into());
            return Ok(SshOptions { ssh, there, through: args.through_ssh });
        }
    };
    Err(Usage(why.into()))
}

fn end(word: &OsStr, args: &TypedArgs) -> Result<Endpoint, Usage> {
    let end = Endpoint::of_transfer(word).map_err(|why| Usage(why.to_string()))?;
    nodes::with_identity(end, args)
}
