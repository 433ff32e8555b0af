//! The verbs, and the command itself.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thalweg::nodes::{Cancel, Channel, ExecOptions};
use thalweg::{Progress, Size};
use thalweg_api::to_json;
use thalweg_verbs::Command;

use crate::asked::{asked, cluster_meant};
use crate::watch::{Patience, watched};
use crate::{errors, same_process};

/// The signal that an interrupted call is cancelled with.
const SIGINT: i32 = 2;
/// The most output of a host that `exec` returns. A program that writes more is at fault; the rest is cut off.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Progress: the stage, its number, the number of stages, bytes done, and bytes in all.
type Seen = (String, u64, u64, u64, u64);

/// Does what `asked` says, and returns its object as JSON, and its last progress. Every 50 ms it calls `look` with the
/// progress, and it calls `note` with each line to be shown at once.
#[pyfunction]
pub(crate) fn call(
    py: Python<'_>,
    verb: &str,
    words: Vec<OsString>,
    options: &Bound<'_, PyDict>,
    look: Option<Bound<'_, PyAny>>,
    note: Bound<'_, PyAny>,
) -> PyResult<(String, Seen)> {
    same_process(py)?;
    let mut ask = asked(verb, options)?;
    ask.words = words;
    let progress = Arc::new(Progress::default());
    let (sender, notes) = mpsc::channel();
    let sender = Mutex::new(sender);
    progress.notes_to(move |note| {
        // The function that shows notes outlives the thread that sends them.
        let _ = sender.lock().expect("no holder panics").send(note.text.clone());
    });
    let noted = || notes.try_iter().try_for_each(|line| note.call1((line,)).map(drop));
    let asks_hosts = ask.cluster.is_some() || matches!(ask.command, Some(Command::Cluster | Command::Job));
    let patience = if asks_hosts { Patience::Second } else { Patience::End };
    let worked = Arc::clone(&progress);
    let done = watched(
        py,
        patience,
        move || thalweg_verbs::run(ask, &worked),
        || progress.cancel(SIGINT),
        |_| {
            noted()?;
            let Some(look) = &look else { return Ok(()) };
            look.call1(seen(&progress)).map(drop)
        },
    )?;
    noted()?;
    done.map(|text| (text, seen(&progress))).map_err(|why| errors::of_call(py, &why))
}

fn seen(progress: &Progress) -> Seen {
    let view = progress.view();
    (view.stage, view.stage_index, view.stages, view.done_bytes, view.total_bytes)
}

/// The text that the command prints for an object.
#[pyfunction]
pub(crate) fn text(kind: &str, object: &str) -> Option<String> {
    thalweg_cli::text(kind, object)
}

/// Parses a number of bytes, with or without a unit.
#[pyfunction]
pub(crate) fn size(py: Python<'_>, text: &str) -> PyResult<u64> {
    match text.parse() {
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(Size::Percent(_)) => {
            Err(errors::usage(py, &format!("'{text}' is a share; write bytes, as in 2GiB")))
        }
        Err(why) => Err(errors::usage(py, &why.to_string())),
    }
}

/// Runs a command on hosts of a cluster, and calls `look` every 50 ms. Returns the report as JSON, and each host's name with its output, standard
/// error included in the second.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "they are the keywords of a call from Python")]
pub(crate) fn exec<'py>(
    py: Python<'py>,
    cluster: Option<OsString>,
    identity: Option<PathBuf>,
    on: Vec<String>,
    command: Vec<String>,
    env: Vec<(String, String)>,
    timeout_seconds: Option<f64>,
    detach: bool,
    look: Option<Bound<'py, PyAny>>,
) -> PyResult<(String, Vec<Output<'py>>)> {
    same_process(py)?;
    let (identity, _) = cluster_meant(py, cluster, identity)?;
    let timeout = timeout_seconds.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|why| errors::usage(py, &format!("timeout: {why}")))?;
    let options = ExecOptions { identity, on, command, env, timeout, detach, ..ExecOptions::default() };
    let cancel = Arc::new(Cancel::default());
    let cancelled = Arc::clone(&cancel);
    let work = move || {
        let mut outputs: Vec<(String, [Vec<u8>; 2])> = Vec::new();
        let report = thalweg::nodes::exec(&options, &cancelled, |host, channel, bytes| {
            let at = outputs.iter().position(|(name, _)| name == host).unwrap_or_else(|| {
                outputs.push((host.to_string(), Default::default()));
                outputs.len() - 1
            });
            let output = &mut outputs[at].1[usize::from(channel == Channel::Err)];
            output.extend_from_slice(&bytes[..bytes.len().min(OUTPUT_BYTES_MAX - output.len())]);
        });
        report.map(|report| (report, outputs))
    };
    let look = |_: Python<'_>| look.as_ref().map_or(Ok(()), |look| look.call0().map(drop));
    let done = watched(py, Patience::Second, work, || cancel.cancel(SIGINT), look)?;
    let (report, outputs) = done.map_err(|why| errors::of_node(py, &why))?;
    let outputs =
        outputs.into_iter().map(|(host, [out, err])| (host, PyBytes::new(py, &out), PyBytes::new(py, &err)));
    Ok((to_json(&report), outputs.collect()))
}

/// A host, and the output of a command there.
type Output<'py> = (String, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Runs the command, whose script is at `path`, with these arguments. Returns the exit status.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, path: PathBuf, args: Vec<OsString>) -> u8 {
    py.detach(|| thalweg_cli::main_of_script(path, args))
}
