//! The verb `pump`: resolves the options on this machine, and runs the transfer.

use std::path::Path;
use std::sync::Arc;

use thalweg_api::{FailureKind, PumpReceipt};
use thalweg_io::tree::Tree;
use thalweg_io::{FileSystem, local, unplanted};
use thalweg_transfer::{Choice, From as Origin, To, Transfer};

use crate::volumes::Volumes;
use crate::{Asked, Endpoint, Error, Progress, PumpOptions, Result, machine};

/// No disk keeps more lanes than this busy.
const STREAMS_MAX: usize = 64;

/// Moves files, trees or streams. The receipt's invariant: out = in.
pub fn pump(options: &PumpOptions, progress: &Progress) -> Result<PumpReceipt> {
    let ([from, to], fallback) = trees(options)?;
    let dest = if options.no_disk.is_some() { To::Null } else { dest(&options.dest, to.io())? };
    let transfer = Transfer { dest, ..sources(options, from.io())? };
    let mut receipt =
        thalweg_transfer::run(&transfer, &from, &to, progress).map_err(|e| error_of(e, progress))?;
    receipt.fallback = fallback;
    Ok(receipt)
}

/// What a transfer with another process needs of this crate: endpoints resolved on this machine. For the node crate.
pub mod ends {
    use super::*;

    /// The file system of the end that is in this process, and why its back end is not the one asked for.
    pub fn tree(options: &PumpOptions) -> Result<(Arc<dyn Tree>, Option<String>)> {
        let ([from, to], fallback) = trees(options)?;
        let is_sink = matches!(options.sources.first(), None | Some(Endpoint::Host(..) | Endpoint::Ssh(..)));
        Ok((if is_sink { to } else { from }, fallback))
    }

    /// The transfer without its destination.
    pub fn sources(options: &PumpOptions, tree: &dyn Tree) -> Result<Transfer> {
        super::sources(options, tree.io())
    }

    /// The destination.
    pub fn dest(options: &PumpOptions, tree: &dyn Tree) -> Result<To> {
        super::dest(&options.dest, tree.io())
    }

    /// An error as the caller sees it.
    pub fn error(error: thalweg_transfer::Error, progress: &Progress) -> Error {
        error_of(error, progress)
    }
}

/// The file systems of the sources and the destination.
type Trees = [Arc<dyn Tree>; 2];

/// The file systems that the sources and the destination are on, and why the local one's back end is not the one asked
/// for. Both are the same `Arc` if both ends are on one.
fn trees(options: &PumpOptions) -> Result<(Trees, Option<String>)> {
    let volume = |end: &Endpoint| match end {
        Endpoint::Volume(path) => Some(path.volume()),
        _ => None,
    };
    let (source, dest) = (options.sources.first(), &options.dest);
    let from = source.and_then(volume);
    if let Some(other) = options.sources.iter().find(|end| volume(end) != from) {
        return Err(Asked::SourceApart(other.clone()).into());
    }
    let (io, fallback) = machine::io(options.io)?;
    let local = local::tree(&io);
    let volumes = Volumes::open(source.into_iter().chain([dest]))?;
    let tree = |end: &Endpoint| volumes.of(end).map_or_else(|| Arc::clone(&local), |volume| volume.tree());
    let source = source.map_or_else(|| Arc::clone(&local), tree);
    let dest = if volume(dest) == from { Arc::clone(&source) } else { tree(dest) };
    Ok(([source, dest], fallback))
}

/// The error of a transfer that may have been cancelled.
fn error_of(error: thalweg_transfer::Error, progress: &Progress) -> Error {
    use thalweg_transfer::Error::*;
    match (error, progress.cancelled()) {
        (Stopped, signal) => Error::Interrupted(signal.unwrap_or(0)),
        // Cancelling closes the links and tells the other end, so threads that wait for either see these errors.
        (Link(_) | Protocol(_), Some(signal)) => Error::Interrupted(signal),
        (Peer { kind, .. }, Some(signal)) if kind != FailureKind::Wrong => Error::Interrupted(signal),
        (Io(e), _) => e.into(),
        (other, _) => other.into(),
    }
}

fn sources(options: &PumpOptions, io: &Arc<dyn FileSystem>) -> Result<Transfer> {
    let sources = match options.no_disk {
        Some(bytes) => vec![Origin::Noise(bytes)],
        None => options.sources.iter().map(|end| source(end, io)).collect::<Result<Vec<_>>>()?,
    };
    let lone = sources.iter().any(|source| !matches!(source, Origin::Path(_)));
    if sources.is_empty() || (lone && sources.len() > 1) {
        return Err(Asked::SourceAlone.into());
    }
    if options.limit == Some(0) {
        return Err(Asked::NoRate.into());
    }
    let streams = options.streams.unwrap_or_else(machine::cores);
    if streams > STREAMS_MAX {
        return Err(Asked::Streams { streams, max: STREAMS_MAX }.into());
    }
    Ok(Transfer {
        streams,
        limit: options.limit,
        resume: options.resume,
        verify: options.verify,
        hashing: !options.no_checksum,
        strict: options.strict,
        choice: Choice::of(&options.choice).map_err(thalweg_transfer::Error::from)?,
        ..Transfer::new(sources, To::Null)
    })
}

fn source(end: &Endpoint, io: &Arc<dyn FileSystem>) -> Result<Origin> {
    match end {
        Endpoint::Standard => Ok(Origin::Stream("/dev/stdin".into())),
        Endpoint::Zeros(bytes) => Ok(Origin::Zeros(*bytes)),
        Endpoint::Null => Err(Asked::NullSource.into()),
        Endpoint::Host(..) | Endpoint::Ssh(..) | Endpoint::Table(_) => {
            Err(Asked::Elsewhere(end.clone()).into())
        }
        Endpoint::Nodes(_) | Endpoint::Client(_) => Err(Asked::NotForTransfer(end.clone()).into()),
        // The root of a volume has no name, so what is in it is meant.
        Endpoint::Volume(path) if path.inside() == Path::new("/") => {
            Ok(Origin::Path(format!("volume:{}/", path.volume()).into()))
        }
        Endpoint::Volume(path) => Ok(Origin::Path(path.as_path().into())),
        Endpoint::Path(path) => {
            // One that cannot be inspected may be left out, if there are others.
            let there = io.stat(named(path)?);
            let is_stream = there.is_ok_and(|there| !there.is_regular && !there.is_directory);
            Ok(if is_stream { Origin::Stream(path.clone()) } else { Origin::Path(path.clone()) })
        }
    }
}

fn dest(end: &Endpoint, io: &Arc<dyn FileSystem>) -> Result<To> {
    match end {
        Endpoint::Standard => Ok(To::Stream("/dev/stdout".into())),
        Endpoint::Null => Ok(To::Null),
        Endpoint::Host(..) | Endpoint::Ssh(..) | Endpoint::Table(_) => {
            Err(Asked::Elsewhere(end.clone()).into())
        }
        Endpoint::Zeros(_) => Err(Asked::ZerosDestination.into()),
        Endpoint::Nodes(_) | Endpoint::Client(_) => Err(Asked::NotForTransfer(end.clone()).into()),
        Endpoint::Volume(path) => Ok(To::Path(path.as_path().into())),
        Endpoint::Path(path) => match io.stat(named(path)?) {
            Ok(there) if !there.is_regular && !there.is_directory => Ok(To::Stream(unplanted(path)?)),
            // A path that does not exist is created; one that cannot be inspected reports that when it is opened.
            _ => Ok(To::Path(path.clone())),
        },
    }
}

fn named(path: &Path) -> Result<&Path> {
    match path.as_os_str().is_empty() {
        true => Err(Asked::NoName.into()),
        false => Ok(path),
    }
}
