//! The common code of transfers over links and over ssh: sending, receiving, and following a transfer between hosts.
//!
//! Non-goals: connecting to the other end ([`Initiator`]), and copying the data (the crate `transfer`).

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thalweg_api::{
    LeftOut, PumpItem, PumpReceipt, PumpRequest, PumpSaid, PumpVerdict, TransferRequest, from_json,
};
use thalweg_base::escape::{escaped, unescaped};
use thalweg_engine::{Asked, Endpoint, Progress, PumpOptions, ends};
use thalweg_pump::Watch;
use thalweg_transfer::{Error, Requested, Route, STAGE, Transport, receive, send};
use thalweg_wire::{ClusterError, Link, LinkError, Streams, What, message};

/// How often to check whether the caller asked to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The most entries that a node may list, which is more than it keeps.
const LISTED_MAX: usize = 2 << 20;

/// What was left out, and what a dry run would change.
type Lists = (Vec<LeftOut>, Vec<PumpItem>);

pub(crate) type Result<T> = std::result::Result<T, thalweg_engine::Error>;

/// The error of a link over which a transfer could not begin.
pub(crate) fn no_link(why: LinkError) -> thalweg_engine::Error {
    ClusterError::Link(why).into()
}

/// A transport whose other end can be asked to take part in a transfer.
pub(crate) trait Initiator: Transport {
    /// The transfer's id.
    fn id(&self) -> String;
    /// Opens the control stream with this request. Lanes will follow.
    fn begin(&self, request: &TransferRequest) -> thalweg_wire::Result<Streams>;
}

/// Sends files from here to the other end, which sends them on to further hosts.
pub(crate) fn push(
    transport: &dyn Initiator,
    (dest, onward): (String, Option<Vec<String>>),
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let (tree, fallback) = ends::tree(options)?;
    let transfer = ends::sources(options, &*tree)?;
    let request = PumpRequest { dest: Some(dest), onward, ..request(transport, options, Vec::new()) };
    let control = transport.begin(&TransferRequest::Pump(Box::new(request))).map_err(no_link)?;
    let sent = send(&transfer, transport, control, &tree, progress);
    if sent.is_err() && progress.cancelled().is_some() {
        let peer = transport.peer();
        progress.note_resumable(&format!(
            "what arrived at {peer} is kept there; resume the transfer to continue"
        ));
    }
    let mut receipt = sent.map_err(|e| ends::error(e, progress))?;
    receipt.fallback = fallback;
    Ok(receipt)
}

/// Receives files from the other end.
pub(crate) fn pull(
    transport: &dyn Initiator,
    options: &PumpOptions,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let (tree, fallback) = ends::tree(options)?;
    let dest = ends::dest(options, &*tree)?;
    let request = request(transport, options, words_of(options)?);
    let control = transport.begin(&TransferRequest::Pump(Box::new(request))).map_err(no_link)?;
    let asked = paths_of(options);
    let asked =
        Requested { paths: &asked, resume: options.resume, strict: options.strict, choice: &options.choice };
    let received = receive(&dest, Some(&asked), (transport, control), (None, false), &tree, progress);
    let mut receipt = received.map_err(|e| ends::error(e, progress))?;
    receipt.fallback = fallback;
    Ok(receipt)
}

/// Shows the progress of a transfer between other hosts, and returns its receipt.
pub(crate) fn follow(
    mut hearing: message::Reader,
    transport: &dyn Transport,
    to: &str,
    progress: &Progress,
) -> Result<PumpReceipt> {
    let host = hearing.peer().to_string();
    let done = AtomicBool::new(false);
    let heard = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(LOOK);
                if progress.cancelled().is_some() {
                    transport.links().iter().for_each(|link| link.close());
                }
            }
        });
        let heard = show_all(&mut hearing, progress);
        done.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        heard
    });
    if let Some(signal) = progress.cancelled() {
        return Err(thalweg_engine::Error::Interrupted(signal));
    }
    let lists = heard.map_err(|e| ends::error(e.into(), progress))?;
    let said = hearing.result().map(String::from_utf8_lossy).unwrap_or_default();
    let verdict: PumpVerdict = from_json(&said).map_err(|_| Error::Protocol(host.clone()))?;
    match (verdict.receipt, verdict.error) {
        (Some(mut receipt), None) => {
            receipt.source.host = host;
            receipt.dest.host = to.to_string();
            (receipt.errors, receipt.items) = lists;
            Ok(receipt)
        }
        (_, why) => {
            let why = format!("{host}: {}", why.unwrap_or_default());
            Err(thalweg_engine::Error::Node { why, kind: verdict.kind })
        }
    }
}

/// Shows a node's reports of a transfer until it ends. Returns what was left out, and what a dry run would change.
fn show_all(hearing: &mut message::Reader, shown: &Progress) -> std::result::Result<Lists, LinkError> {
    let (mut all, mut shown_bytes) = (None, 0);
    let (mut left_out, mut items): Lists = Default::default();
    while let Some((text, _)) = hearing.next()? {
        match from_json(&text) {
            Ok(PumpSaid::Progress(done, total)) => {
                if all != Some(total) {
                    (all, shown_bytes) = (Some(total), 0);
                    shown.begin(STAGE, 1, 1, total);
                }
                shown.advance(done.saturating_sub(shown_bytes));
                shown_bytes = shown_bytes.max(done);
            }
            Ok(PumpSaid::Note(note)) => shown.pass_on(&note),
            Ok(PumpSaid::LeftOut(some)) if left_out.len() < LISTED_MAX => left_out.extend(some),
            Ok(PumpSaid::Items(some)) if items.len() < LISTED_MAX => items.extend(some),
            Ok(PumpSaid::Authority(_) | PumpSaid::LeftOut(_) | PumpSaid::Items(_)) => {}
            Err(why) => return Err(LinkError::new(hearing.peer(), What::Cut(why))),
        }
    }
    Ok((left_out, items))
}

pub(crate) fn request(transport: &dyn Initiator, options: &PumpOptions, sources: Vec<String>) -> PumpRequest {
    PumpRequest {
        id: transport.id(),
        sources,
        dest: None,
        to: None,
        onward: None,
        meeting: None,
        streams: options.streams.map_or(0, |streams| streams as u32),
        limit: options.limit,
        resume: options.resume,
        verify: options.verify,
        checksum: !options.no_checksum,
        strict: options.strict,
        choice: options.choice.clone(),
    }
}

pub(crate) fn words_of(options: &PumpOptions) -> Result<Vec<String>> {
    let of = |end: &Endpoint| match end {
        Endpoint::Host(_, end) => word_of(end),
        Endpoint::Ssh(_, path) => Ok(word_over_ssh(path)),
        end => word_of(end),
    };
    options.sources.iter().map(of).collect()
}

/// The paths of the sources as the user typed them.
fn paths_of(options: &PumpOptions) -> Vec<PathBuf> {
    // A path to the home directory itself means its contents.
    let over_ssh = |path: &PathBuf| match below_home(path) {
        Some(below) if below.as_os_str().is_empty() => "/~/".into(),
        _ => path.clone(),
    };
    let path = |end: &Endpoint| match end {
        Endpoint::Path(path) => Some(path.clone()),
        Endpoint::Ssh(_, path) => Some(over_ssh(path)),
        Endpoint::Host(_, end) => match &**end {
            Endpoint::Path(path) => Some(over_ssh(path)),
            _ => None,
        },
        _ => None,
    };
    options.sources.iter().filter_map(path).collect()
}

/// The part of a remote path below the home directory `/~`, if it begins there. A slash at its end is kept: it matters.
fn below_home(path: &Path) -> Option<&Path> {
    let below = path.as_os_str().as_bytes().strip_prefix(b"/~")?;
    let below = if below.is_empty() { below } else { below.strip_prefix(b"/")? };
    Some(Path::new(OsStr::from_bytes(below)))
}

/// An end of a transfer as one escaped string in a request.
pub(crate) fn word_of(end: &Endpoint) -> Result<String> {
    match end {
        Endpoint::Path(path) => Ok(word_of_path(path)),
        Endpoint::Zeros(bytes) => Ok(format!("zero:{bytes}")),
        Endpoint::Null => Ok("null:".into()),
        _ => Err(Asked::StreamOnHost.into()),
    }
}

/// A path over ssh as one escaped string in a request; `/~` is the remote home directory.
pub(crate) fn word_over_ssh(path: &Path) -> String {
    match below_home(path) {
        Some(below) => format!("home:{}", escaped(below.as_os_str().as_bytes())),
        None => word_of_path(path),
    }
}

fn word_of_path(path: &Path) -> String {
    format!("path:{}", escaped(path.as_os_str().as_bytes()))
}

pub(crate) fn end_of(word: &str) -> Option<Endpoint> {
    if let Some(below) = word.strip_prefix("home:") {
        let below = PathBuf::from(std::ffi::OsString::from_vec(unescaped(below)?));
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        return home.filter(|_| below.is_relative()).map(|home| Endpoint::Path(home.join(below)));
    }
    if let Some(path) = word.strip_prefix("path:") {
        let path = PathBuf::from(std::ffi::OsString::from_vec(unescaped(path)?));
        return path.is_absolute().then_some(Endpoint::Path(path));
    }
    match word.strip_prefix("zero:") {
        Some(bytes) => bytes.parse().ok().map(Endpoint::Zeros),
        None => (word == "null:").then_some(Endpoint::Null),
    }
}

/// The route of lanes over these links. The first link is ssh's channel; if it is the only one, the lanes share it.
pub(crate) fn route_of(links: &[Arc<Link>]) -> Route {
    if links.len() > 1 { Route::Direct } else { Route::ThroughSsh }
}
