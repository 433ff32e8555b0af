//! Other programs on the same data: the engines that `bench/rivals` has installed.
//!
//! Invariant: a rival gets the same memory and the same number of lanes as ours. An engine also gets the file format
//! that suits it best; converting the input to that format is not timed.
//! Non-goals: installing rivals (`bench/rivals/setup`), and how each is called (`bench/rivals/run.py`).

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::{RivalRun, from_json};
use thalweg_measure::process::whole_process;
use thalweg_measure::sort::{Rivals, Share};
use thalweg_measure::{Error, Result, failed};

/// The names of the engines in the runner.
const ENGINES: [&str; 5] = ["chdb", "polars", "duckdb", "datafusion", "spark"];
/// The engines that divide a sort among several workers.
const CLUSTERS: [&str; 2] = ["spark", "ray"];
/// The number of workers, as many as ours has nodes.
const NODES: &str = "4";
/// The bytes of memory for each byte of input: as much as these engines want.
const MEMORY_OF_CLUSTER: u64 = 8;
/// The least memory in which any engine starts.
const ENGINE_MEMORY_BYTES_MIN: u64 = 512_000_000;

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
}

impl Rivals for Engines {
    fn names(&self, share: Share) -> &'static [&'static str] {
        match share {
            Share::Cores => &ENGINES,
            Share::Nodes => &CLUSTERS,
        }
    }

    fn sort(
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
