//! Measures one process, and takes medians of several runs.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use thalweg_api::{BenchMeasure, PumpReceipt, Receipt, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::{self, Usage};

use crate::{Error, Result};

/// The outcome of a process.
pub struct Ended {
    /// From before its start until it was reaped.
    pub seconds: f64,
    /// CPU time and peak memory.
    pub usage: Usage,
    /// Its standard output.
    pub out: String,
}

impl Ended {
    /// The receipt that a verb printed. Fails if its invariant does not hold.
    pub fn receipt(&self) -> Result<Receipt> {
        let receipt: Receipt = from_json(self.out.trim()).map_err(unreadable)?;
        held(receipt.holds).map(|()| receipt)
    }

    /// The receipt that a transfer printed. Fails if its invariant does not hold.
    pub fn pump_receipt(&self) -> Result<PumpReceipt> {
        let receipt: PumpReceipt = from_json(self.out.trim()).map_err(unreadable)?;
        held(receipt.holds).map(|()| receipt)
    }
}

fn unreadable(why: String) -> Error {
    Error::Failed(format!("a receipt cannot be read: {why}"))
}

fn held(holds: bool) -> Result<()> {
    let wrong = || Error::Wrong("an output does not match its input; see the receipt".to_string());
    holds.then_some(()).ok_or_else(wrong)
}

/// Runs a process to its end. If it fails, the error holds the last line of its standard error.
pub fn whole_process(command: &mut Command) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| Error::Failed(format!("{name} cannot be run: {e}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let watch = Stopwatch::start();
    let mut child = command.spawn().map_err(failed)?;
    let (out, complaint) = (child.stdout.take(), child.stderr.take());
    // Reads both pipes at the same time: a process would block for ever once the other pipe is full.
    let complaint = std::thread::spawn(move || text_of(complaint));
    let out = text_of(out);
    let (status, usage) = process::wait(child).map_err(failed)?;
    let seconds = watch.seconds();
    let complaint = complaint.join().unwrap_or_default();
    if !status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let said = complaint.trim().lines().last().unwrap_or("nothing");
        return Err(Error::Failed(format!(
            "{name} {} ended with {status} and said: {said}",
            words.join(" ")
        )));
    }
    Ok(Ended { seconds, usage, out })
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // After an error there is nothing more to read.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A sort of ours, as a command line.
pub(crate) struct OurSort<'a> {
    pub(crate) program: &'a Path,
    pub(crate) input: &'a Path,
    pub(crate) output: &'a Path,
    pub(crate) memory_bytes: u64,
    /// Flags for the layout of records.
    pub(crate) layout: &'a [&'a str],
    /// Further arguments.
    pub(crate) words: &'a [&'a str],
}

impl OurSort<'_> {
    /// Runs it. Fails if the receipt's invariant does not hold.
    pub(crate) fn run(&self) -> Result<(Ended, Receipt)> {
        let mut command = Command::new(self.program);
        command.arg("sort").arg(self.input).arg("-o").arg(self.output);
        command.arg("--memory").arg(self.memory_bytes.to_string());
        command.args(["--json", "--progress", "never"]).args(self.layout).args(self.words);
        let ended = whole_process(&mut command)?;
        let receipt = ended.receipt()?;
        Ok((ended, receipt))
    }
}

/// Measurements of several runs.
#[derive(Default)]
pub struct Series {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    kernel_seconds: Vec<f64>,
    peak_bytes: u64,
}

impl Series {
    /// Adds a run.
    pub fn add(&mut self, seconds: f64, usage: Usage) {
        self.seconds.push(seconds);
        self.cpu_seconds.push(usage.cpu_seconds);
        self.kernel_seconds.push(usage.kernel_seconds);
        self.peak_bytes = self.peak_bytes.max(usage.peak_bytes);
    }

    /// Runs something in this process and adds its time and usage.
    pub fn run<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let before = process::usage();
        let watch = Stopwatch::start();
        let value = what();
        let seconds = watch.seconds();
        let mut usage = process::usage();
        usage.cpu_seconds -= before.cpu_seconds;
        usage.kernel_seconds -= before.kernel_seconds;
        // Memory that was resident before cannot be told apart.
        usage.peak_bytes = 0;
        self.add(seconds, usage);
        value
    }

    /// Whether nothing ran.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// The medians of all runs.
    pub fn measure(self) -> BenchMeasure {
        BenchMeasure {
            seconds: median(&self.seconds),
            cpu_seconds: median(&self.cpu_seconds),
            kernel_seconds: median(&self.kernel_seconds),
            peak_bytes: self.peak_bytes,
            all_seconds: self.seconds,
        }
    }
}

/// The median: the middle value, or the mean of the two in the middle.
pub fn median(numbers: &[f64]) -> f64 {
    assert!(!numbers.is_empty(), "nothing was measured");
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
    }

    #[test]
    fn a_process_is_measured_with_what_it_printed() {
        let ended = whole_process(Command::new("sh").args(["-c", "echo done; echo loud >&2"])).unwrap();
        assert_eq!(ended.out, "done\n");
        assert!(ended.seconds > 0.0 && ended.usage.peak_bytes > 0);
    }

    #[test]
    fn a_process_that_fails_is_an_error_with_its_last_words() {
        let told = whole_process(Command::new("sh").args(["-c", "echo one >&2; echo two >&2; exit 4"]));
        let message = told.err().expect("it failed").to_string();
        assert!(message.contains("exit status: 4") && message.ends_with("said: two"), "{message}");
    }
}
