//! Tables as ends of the verbs on records: `table:NAME` and `table:NAME@LOW..HIGH`.
//!
//! ```text
//! Dump --pipe--> verb --pipe--> Loader        the verb reads and writes the pipes as /dev/fd/N
//! ```
//!
//! Model: a thread for each end moves records between its pipe and the nodes, so every verb that reads or writes a
//! stream works with tables, in the memory of the verb and a few buffers.
//! Invariant: a verb whose source fails is stopped before it sees the end of its input, so it publishes nothing. A
//! table gets the records only after the verb has succeeded.
//! Non-goals: work on the nodes of a cluster, which does not read streams.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use thalweg_api::{TableForm, TableLoaded};
use thalweg_engine::{Endpoint, Layout, Progress, Result, TablePart};
use thalweg_io::{Action, pipe};
use thalweg_record::KeyPart;
use thalweg_table::cluster::{Dump, Duplicates, Error, Interval, Loader, Prepared, Tables, text};

use crate::nodes::default_identity;

/// The bytes that are moved at a time.
const TOGETHER_BYTES: usize = 256 << 10;
/// The signal with which a verb is stopped when a table fails.
const SIGPIPE: i32 = 13;

/// The tables among the ends of a verb.
#[derive(Default)]
pub(crate) struct Ends {
    sources: Vec<(PipeReader, PipeWriter, Dump)>,
    sink: Option<(PipeReader, PipeWriter, Loader)>,
}

impl Ends {
    /// Replaces an endpoint that is a table by a pipe from which its records can be read.
    pub(crate) fn source(&mut self, end: &mut Endpoint) -> Result<()> {
        let Endpoint::Table(part) = &*end else { return Ok(()) };
        let keys = match &part.keys {
            Some(keys) => Interval::parse(keys, text::parse).map_err(Error::Refused)?,
            None => Interval::all(),
        };
        let dump = Dump::open(&tables_of(part)?, &part.name, keys)?;
        let (from, to) = pipe_for(end)?;
        *end = descriptor(from.as_raw_fd());
        self.sources.push((from, to, dump));
        Ok(())
    }

    /// Replaces an endpoint that is a table by a pipe into which its records can be written in order.
    pub(crate) fn sink(
        &mut self,
        end: &mut Endpoint,
        form: impl FnOnce() -> std::result::Result<TableForm, Error>,
        duplicates: Duplicates,
    ) -> Result<()> {
        let Endpoint::Table(part) = &*end else { return Ok(()) };
        if part.keys.is_some() {
            let name = &part.name;
            let why =
                format!("a whole table is loaded, not a part of it; write table:{name} instead of {end}");
            return Err(Error::Refused(why).into());
        }
        let loader = Loader::new(&tables_of(part)?, &part.name, form()?, duplicates)?;
        let (from, to) = pipe_for(end)?;
        *end = descriptor(to.as_raw_fd());
        self.sink = Some((from, to, loader));
        Ok(())
    }

    /// Runs a verb whose ends were replaced. Returns what was loaded, too.
    pub(crate) fn run<T>(
        self,
        progress: &Progress,
        verb: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<TableLoaded>)> {
        if self.sources.is_empty() && self.sink.is_none() {
            return verb().map(|done| (done, None));
        }
        let failed = Mutex::new(None);
        let fail = |why: Error| _ = failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        let (done, prepared) = std::thread::scope(|scope| {
            let (mut readers, mut over): (Vec<PipeReader>, Vec<Sender<()>>) = (Vec::new(), Vec::new());
            for (from, to, dump) in self.sources {
                let (says, is_over) = channel();
                readers.push(from);
                over.push(says);
                let fail = &fail;
                scope.spawn(move || {
                    feed(to, dump, |why| {
                        fail(why);
                        progress.cancel(SIGPIPE);
                        wait(&is_over);
                    })
                });
            }
            let (into, sinks) = match self.sink {
                Some((from, to, loader)) => (Some(to), Some(scope.spawn(move || drain(from, loader)))),
                None => (None, None),
            };
            let done = verb();
            // From here on whoever still writes to a source, or waits for the end of the sink, gets an error or the
            // end.
            drop((readers, over, into));
            (done, sinks.map(|sink| sink.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
        });
        if let Some(why) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(why.into());
        }
        match (done, prepared) {
            (Err(why), _) if !matches!(why, thalweg_engine::Error::Interrupted(SIGPIPE)) => Err(why),
            (_, Some(Err(why))) => Err(why.into()),
            (done, prepared) => {
                let done = done?;
                let loaded = prepared.transpose()?.map(Prepared::commit).transpose()?;
                Ok((done, loaded))
            }
        }
    }
}

/// Waits until the other side is dropped.
fn wait(is_over: &Receiver<()>) {
    let _ = is_over.recv();
}

fn tables_of(part: &TablePart) -> Result<Tables> {
    let identity = match &part.identity {
        Some(identity) => identity.clone(),
        None => {
            default_identity().ok_or_else(|| Error::Refused("there is no identity of a cluster".into()))?
        }
    };
    Ok(Tables::load(&identity, part.cluster.as_deref())?)
}

fn pipe_for(end: &Endpoint) -> Result<(PipeReader, PipeWriter)> {
    let failed = |why| thalweg_io::Error::new(Action::Open, PathBuf::from(end.to_string()), why);
    Ok(pipe::new().map_err(failed)?)
}

fn descriptor(number: RawFd) -> Endpoint {
    Endpoint::from(Path::new("/dev/fd").join(number.to_string()))
}

/// Writes the records of a table to a pipe. If that fails, `fails` is called before the reader sees the end.
fn feed(mut to: PipeWriter, mut dump: Dump, fails: impl FnOnce(Error)) {
    let mut bytes = Vec::with_capacity(TOGETHER_BYTES);
    loop {
        bytes.clear();
        match dump.read(&mut bytes, TOGETHER_BYTES) {
            Ok(true) => match to.write_all(&bytes) {
                Ok(()) => {}
                // The verb has ended, or needs no more.
                Err(why) if why.kind() == ErrorKind::BrokenPipe => return,
                Err(why) => return fails(Error::Refused(why.to_string())),
            },
            Ok(false) => return,
            Err(why) => return fails(why),
        }
    }
}

/// Loads what comes out of a pipe.
fn drain(mut from: PipeReader, mut loader: Loader) -> std::result::Result<Prepared, Error> {
    let mut bytes = vec![0; TOGETHER_BYTES];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return loader.finish(),
            Ok(read) => loader.put(&bytes[..read])?,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(Error::Refused(why.to_string())),
        }
    }
}

/// The form of records in a table that are sorted by these keys.
///
/// # Errors
/// If they are not of one length, or have more than one ascending key.
pub(crate) fn form(layout: Layout, keys: &[KeyPart]) -> std::result::Result<TableForm, Error> {
    match (layout.fixed_bytes(), keys) {
        (Some(bytes), [KeyPart { offset, length, descending: false }]) => {
            Ok(TableForm { record_bytes: bytes as u32, key_offset: *offset, key_bytes: *length })
        }
        _ => Err(Error::Refused(
            "a table takes records of one length, in ascending order of one key; give both, as in --record 100 --by 0:10"
                .into(),
        )),
    }
}
