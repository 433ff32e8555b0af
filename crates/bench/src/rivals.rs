//! Other programs on the same data: GNU sort, and the engines that `bench/rivals` has installed.
//!
//! Invariant: a rival gets the same memory and the same number of lanes as ours. An engine also gets the file format
//! that suits it best; converting the input to that format is not timed.
//! Non-goals: installing rivals (`bench/rivals/setup`), and how each is called (`bench/rivals/run.py`).

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::{RivalRun, from_json};
use thalweg_io::process::Usage;

use crate::measure::{Ended, whole_process};
use crate::{Error, Result};
use crate::{failed, machine};

/// The names of the engines in the runner.
pub(crate) const ENGINES: [&str; 5] = ["chdb", "polars", "duckdb", "datafusion", "spark"];
/// The engines that divide a sort among several workers.
pub(crate) const CLUSTERS: [&str; 2] = ["spark", "ray"];
/// The number of workers, as many as ours has nodes.
const NODES: &str = "4";
/// The bytes of memory for each byte of input: as much as these engines want.
const MEMORY_OF_CLUSTER: u64 = 8;
/// The least memory in which any engine starts.
const ENGINE_MEMORY_BYTES_MIN: u64 = 512_000_000;

/// GNU sort. It exists only if the command `sort` is GNU's.
pub(crate) struct Gnu(());

impl Gnu {
    /// Finds it; an error says why it is not measured.
    pub(crate) fn find() -> std::result::Result<Gnu, String> {
        let told = Command::new("sort").arg("--version").output();
        match told {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("GNU coreutils") => Ok(Gnu(())),
            _ => Err("GNU sort is not installed (apt-get install coreutils)".to_string()),
        }
    }

    /// Sorts lines as ours does: by their bytes, stably.
    pub(crate) fn sort(&self, input: &Path, output: &Path, memory_bytes: u64) -> Result<Ended> {
        let mut command = Command::new("sort");
        command.env("LC_ALL", "C").arg("-s").arg(format!("--parallel={}", machine::cores()));
        command.arg(format!("-S{memory_bytes}b")).arg("-T").arg(output.parent().unwrap_or(Path::new(".")));
        whole_process(command.arg("-o").arg(output).arg(input))
    }
}

/// The number of workers of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// As many threads as there are cores, with the same memory as ours.
    Cores,
    /// [`NODES`], with as much memory as they want.
    Nodes,
}

/// The runner of the engines.
pub(crate) struct Engines {
    python: PathBuf,
    runner: PathBuf,
}

impl Engines {
    /// Finds it below the current directory; an error says why the engines are not measured.
    pub(crate) fn find() -> std::result::Result<Engines, String> {
        let below = Path::new("bench/rivals");
        let (python, runner) = (below.join(".venv/bin/python"), below.join("run.py"));
        match (std::path::absolute(&python), std::path::absolute(&runner)) {
            (Ok(python), Ok(runner)) if python.exists() && runner.exists() => Ok(Engines { python, runner }),
            _ => Err("no rivals: run bench/rivals/setup, and run this in the repository's root".to_string()),
        }
    }

    /// One run of an engine, with its own check of the output.
    pub(crate) fn sort(
        &self,
        (name, share): (&str, Share),
        input: &Path,
        output: &Path,
        memory_bytes: u64,
        lines: bool,
    ) -> Result<RivalRun> {
        let mut command = Command::new(&self.python);
        command.arg(&self.runner).arg(name).arg("--input").arg(input).arg("--output").arg(output);
        let memory_bytes = match share {
            Share::Cores => memory_bytes,
            Share::Nodes => {
                command.arg("--threads").arg(NODES);
                let input = input.metadata().map_err(|e| failed("inspect", input, &e))?;
                MEMORY_OF_CLUSTER * input.len()
            }
        };
        let memory_bytes = memory_bytes.max(ENGINE_MEMORY_BYTES_MIN);
        command.arg("--format").arg(if lines { "lines" } else { "binary" });
        command.arg("--memory").arg(memory_bytes.to_string());
        let ended = whole_process(&mut command)?;
        let told = ended.out.trim().lines().last().unwrap_or("");
        let run: RivalRun =
            from_json(told).map_err(|e| Error::Failed(format!("{name}'s runner: {e} in '{told:.80}'")))?;
        if run.ok { Ok(run) } else { Err(Error::Failed(format!("{name}: {}", run.error))) }
    }
}

/// The usage of a rival, measured like that of our processes.
pub(crate) fn usage_of(run: &RivalRun) -> Usage {
    Usage { cpu_seconds: run.cpu_seconds, peak_bytes: run.peak_rss_bytes, ..Usage::default() }
}
