//! The floor: the reads and writes of a plan, phase by phase, replayed by fio with direct I/O.
//!
//! ```text
//! fits in memory    read N          |  write N
//! spills S          read N, write S |  read S, write N       a phase's reads and writes run at the same time
//! ```
//!
//! Invariant: the floor counts only what must be read and written, and each phase has the best of the depths that were
//! tried. The start of fio, the creation of its files and syncing are not counted.
//! Non-goal: more than one disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::{BenchFloor, BenchPhase};

use crate::process::{median, whole_process};
use crate::{Error, Result};

/// The depths that are tried.
const DEPTHS: [u32; 4] = [1, 2, 4, 8];
/// The depth if none is tried.
const DEPTH_TINY: u32 = 4;
const ENGINES: [&str; 2] = ["io_uring", "libaio"];
/// A block size at which larger ones are no faster, if there are many blocks.
const CHUNK_BYTES: u64 = 1 << 20;
const CHUNK_BYTES_SMALL: u64 = 64 << 10;
/// The amount of data that shows the best depth.
const TRIAL_BYTES: u64 = 2_000_000_000;
/// The fraction of the memory that must hold records; data beyond it must spill.
const MEMORY_SHARE: (u64, u64) = (8, 10);
const SCRATCH: &str = "floor-scratch";
const OUTPUT: &str = "floor-output";

/// fio, if it is installed and works.
pub struct Fio {
    engine: &'static str,
    directory: PathBuf,
}

/// The necessary reads and writes of a sort of `bytes` bytes that spilled `spilled`. For records of a fixed length,
/// only those spilled bytes count that could not have stayed in memory.
pub fn phases(bytes: u64, spilled: u64, memory_bytes: u64, fixed: bool) -> Vec<BenchPhase> {
    let held = memory_bytes / MEMORY_SHARE.1 * MEMORY_SHARE.0;
    let spilled = if fixed { spilled.min(bytes.saturating_sub(held)) } else { spilled };
    let phase = |read_bytes, written_bytes| BenchPhase { read_bytes, written_bytes, ..BenchPhase::default() };
    vec![phase(bytes, spilled), phase(spilled, bytes)]
}

impl Fio {
    /// Tries fio in the directory where it will run; an error says why it does not work.
    pub fn find(directory: &Path) -> std::result::Result<Fio, String> {
        let told = Command::new("fio").arg("--version").output();
        if !told.is_ok_and(|output| output.status.success()) {
            return Err("no floor: fio is not installed (apt-get install fio)".to_string());
        }
        let mut why = String::new();
        for engine in ENGINES {
            let fio = Fio { engine, directory: directory.to_path_buf() };
            let trial =
                BenchPhase { written_bytes: CHUNK_BYTES_SMALL, depth: DEPTH_TINY, ..BenchPhase::default() };
            match fio.replay("none", &[trial]) {
                Ok(_) => return Ok(fio),
                Err(e) => why = e.to_string(),
            }
        }
        Err(format!("no floor: fio can use neither io_uring nor libaio here ({why})"))
    }

    /// Finds the best depth of each phase on a fraction of the bytes.
    pub fn search(&self, input: &str, phases: &mut [BenchPhase], tiny: bool) -> Result<()> {
        if tiny {
            phases.iter_mut().for_each(|phase| phase.depth = DEPTH_TINY);
            return Ok(());
        }
        let all: u64 = phases.iter().map(|phase| phase.read_bytes + phase.written_bytes).sum();
        let part = (TRIAL_BYTES as f64 / all.max(1) as f64).min(1.0);
        let of = |bytes: u64| (bytes as f64 * part) as u64;
        let mut best = vec![f64::INFINITY; phases.len()];
        for depth in &DEPTHS {
            let trial: Vec<BenchPhase> = phases
                .iter()
                .map(|phase| BenchPhase {
                    read_bytes: of(phase.read_bytes),
                    written_bytes: of(phase.written_bytes),
                    depth: *depth,
                    seconds: 0.0,
                })
                .collect();
            for (i, seconds) in self.replay(input, &trial)?.into_iter().enumerate() {
                if seconds < best[i] {
                    (best[i], phases[i].depth) = (seconds, *depth);
                }
            }
        }
        Ok(())
    }

    /// Seconds of each phase. `input` is the name of a file in the directory, which is only read.
    pub fn replay(&self, input: &str, phases: &[BenchPhase]) -> Result<Vec<f64>> {
        let job = self.directory.join("floor.fio");
        std::fs::write(&job, self.jobs(input, phases)).map_err(|e| crate::failed("write", &job, &e))?;
        let mut command = Command::new("fio");
        command.args(["--output-format=terse", "--terse-version=3", "floor.fio"]);
        let told = whole_process(command.current_dir(&self.directory));
        for name in [SCRATCH, OUTPUT, "floor.fio"] {
            let _ = std::fs::remove_file(self.directory.join(name));
        }
        seconds_of(&told?.out, phases.len())
    }

    /// A job for each direction of each phase; a phase waits for the one before it.
    fn jobs(&self, input: &str, phases: &[BenchPhase]) -> String {
        let least =
            phases.iter().flat_map(|p| [p.read_bytes, p.written_bytes]).filter(|&bytes| bytes > 0).min();
        let chunk = if least.unwrap_or(0) >= 64 * CHUNK_BYTES { CHUNK_BYTES } else { CHUNK_BYTES_SMALL };
        let mut text =
            format!("[global]\nioengine={}\ndirect=1\nthread=1\nbs={chunk}\nrandrepeat=1\n", self.engine);
        for (i, phase) in phases.iter().enumerate() {
            let last = i + 1 == phases.len();
            let reads = (if i == 0 { input } else { SCRATCH }, "read", phase.read_bytes);
            let writes = (if last { OUTPUT } else { SCRATCH }, "write", phase.written_bytes);
            let mut wait = "stonewall\n";
            for (file, direction, bytes) in [reads, writes] {
                let bytes = bytes / chunk * chunk;
                if bytes == 0 {
                    continue;
                }
                text += &format!(
                    "[phase{i}-{direction}]\n{wait}filename={file}\nrw={direction}\nsize={bytes}\niodepth={}\n",
                    phase.depth
                );
                wait = "";
            }
        }
        text
    }
}

/// The time of each phase, that of the longer direction, from fio's semicolon-separated output, version 3.
fn seconds_of(table: &str, phases: usize) -> Result<Vec<f64>> {
    const NAME: usize = 2;
    const ERROR: usize = 4;
    const READ_MS: usize = 8;
    const WRITE_MS: usize = 49;
    let wrong = |line: &str| Error::Failed(format!("the output of fio cannot be read: '{line:.60}'"));
    let mut seconds = vec![0.0f64; phases];
    for line in table.lines().filter(|line| line.starts_with("3;")) {
        let cells: Vec<&str> = line.split(';').collect();
        let number = |at: usize| cells.get(at)?.parse::<u64>().ok();
        let phase =
            cells.get(NAME).and_then(|name| name.strip_prefix("phase")?.split_once('-')?.0.parse().ok());
        let (Some(phase), Some(0), Some(read), Some(write)) =
            (phase, number(ERROR), number(READ_MS), number(WRITE_MS))
        else {
            return Err(wrong(line));
        };
        let slot: &mut f64 = seconds.get_mut::<usize>(phase).ok_or_else(|| wrong(line))?;
        *slot = slot.max(read.max(write) as f64 / 1e3);
    }
    Ok(seconds)
}

/// The result of several replays.
pub struct Replays<'a> {
    fio: &'a Fio,
    phases: Vec<BenchPhase>,
    runs: Vec<Vec<f64>>,
}

impl<'a> Replays<'a> {
    /// Of these phases, without a run so far.
    pub fn new(fio: &'a Fio, phases: Vec<BenchPhase>) -> Replays<'a> {
        Replays { fio, phases, runs: Vec::new() }
    }

    /// Replays all phases once.
    pub fn once(&mut self, input: &str) -> Result<()> {
        self.runs.push(self.fio.replay(input, &self.phases)?);
        Ok(())
    }

    /// The medians of all runs.
    pub fn floor(mut self) -> BenchFloor {
        let all_seconds: Vec<f64> = self.runs.iter().map(|run| run.iter().sum()).collect();
        for (i, phase) in self.phases.iter_mut().enumerate() {
            phase.seconds = median(&self.runs.iter().map(|run| run[i]).collect::<Vec<f64>>());
        }
        let engine = format!("fio {}", self.fio.engine);
        BenchFloor { seconds: median(&all_seconds), all_seconds, phases: self.phases, engine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fio() -> Fio {
        Fio { engine: "io_uring", directory: PathBuf::new() }
    }

    fn phase(read_bytes: u64, written_bytes: u64) -> BenchPhase {
        BenchPhase { read_bytes, written_bytes, depth: 4, seconds: 0.0 }
    }

    #[test]
    fn phases_count_only_what_must_spill() {
        let bytes_of = |phases: Vec<BenchPhase>| {
            phases.iter().map(|p| (p.read_bytes, p.written_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(bytes_of(phases(10_000, 9500, 1000, true)), [(10_000, 9200), (9200, 10_000)]);
        assert_eq!(bytes_of(phases(10_000, 9500, 1000, false)), [(10_000, 9500), (9500, 10_000)]);
        assert_eq!(bytes_of(phases(10_000, 0, 20_000, true)), [(10_000, 0), (0, 10_000)]);
    }

    #[test]
    fn what_goes_on_at_once_stands_in_one_group_of_jobs() {
        let text = fio().jobs("input", &[phase(1 << 30, 1 << 29), phase(1 << 29, 1 << 30)]);
        let jobs: Vec<&str> = text.split("\n[").skip(1).collect();
        let expected = [
            ("phase0-read", "input", true),
            ("phase0-write", SCRATCH, false),
            ("phase1-read", SCRATCH, true),
            ("phase1-write", OUTPUT, false),
        ];
        assert_eq!(jobs.len(), expected.len(), "{text}");
        for (job, (name, file, waits)) in jobs.iter().zip(expected) {
            assert!(job.starts_with(name) && job.contains(&format!("filename={file}\n")), "{job}");
            assert_eq!(job.contains("stonewall"), waits, "{job}");
        }
        let memory = fio().jobs("input", &[phase(1 << 20, 0), phase(0, 1 << 20)]);
        assert_eq!(memory.matches("stonewall").count(), 2, "{memory}");
        assert!(memory.contains("bs=65536") && !memory.contains(SCRATCH), "{memory}");
    }

    #[test]
    fn a_phase_takes_as_long_as_its_longer_direction() {
        let line = |name: &str, read: u32, write: u32| {
            let mut cells = vec!["0".to_string(); 130];
            cells[0] = "3".into();
            cells[2] = name.into();
            (cells[8], cells[49]) = (read.to_string(), write.to_string());
            cells.join(";") + "\n"
        };
        let table =
            line("phase0-read", 1500, 0) + &line("phase0-write", 0, 2500) + &line("phase1-write", 0, 10);
        assert_eq!(seconds_of(&table, 2).unwrap(), [2.5, 0.01]);
        assert!(seconds_of("3;fio;what;0;0\n", 1).is_err());
    }
}
