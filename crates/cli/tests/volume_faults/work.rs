//! What a program does on a mount while something happens to it, and what of that has to be found afterwards.
//!
//! Invariant: a step is counted only when the system has acknowledged it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;

/// Bytes of a step that writes: more than a stripe, so that it goes to several stores.
const PIECE: usize = 96 << 10;
/// Steps before the fault may come, and after it.
const STEPS_BEFORE: usize = 8;
const STEPS_AFTER: usize = 40;
/// Stores of the volume.
const STORES: u64 = 4;
/// Reads after the fault: several of each store.
const READS_AFTER: usize = 200;
pub(crate) const READ_BYTES: usize = 4096;
/// Longer than any request may take; whoever takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// What a program does again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Makes files.
    Create,
    /// Writes to one file.
    Write,
    /// Writes to one file, and syncs each time.
    Fsync,
    /// Writes a file, syncs it and puts it in the place of the one before.
    Rename,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Steps that were acknowledged.
    pub(crate) steps: usize,
    pub(crate) slowest_seconds: f64,
    /// What ended it, unless that was the test.
    pub(crate) error: Option<io::Error>,
}

impl Ended {
    /// Of a program that hangs.
    pub(crate) fn never() -> Ended {
        let error = Some(io::Error::other("it hangs"));
        Ended { steps: 0, slowest_seconds: HANGS.as_secs_f64(), error }
    }
}

/// What a file that is read has at a byte.
pub(crate) fn block(at: u64) -> [u8; READ_BYTES] {
    [(at / READ_BYTES as u64 % 251) as u8; READ_BYTES]
}

fn piece(step: usize) -> Vec<u8> {
    vec![(step % 251) as u8 + 1; PIECE]
}

/// Creates a file, if a slot is given, with its first strip there: the number of a file decides about that.
fn create(path: &Path, slot: Option<u64>) -> io::Result<File> {
    loop {
        let file = File::create(path)?;
        if slot.is_none_or(|slot| file.metadata().is_ok_and(|found| found.ino() % STORES == slot)) {
            return Ok(file);
        }
        fs::remove_file(path)?;
    }
}

/// Writes a file with its first strip in a slot. Returns the number of bytes.
pub(crate) fn write_some(path: &Path, slot: u64) -> io::Result<u64> {
    let _ = fs::remove_file(path);
    let file = create(path, Some(slot))?;
    (0..STEPS_BEFORE).try_for_each(|step| file.write_all_at(&piece(step), (step * PIECE) as u64))?;
    Ok((STEPS_BEFORE * PIECE) as u64)
}

/// A program at work in a directory.
struct Program {
    work: Work,
    dir: PathBuf,
    /// The slot of the first strip of each file, if it matters.
    slot: Option<u64>,
    file: File,
}

impl Program {
    fn start(work: Work, dir: &Path, slot: Option<u64>) -> io::Result<Program> {
        Ok(Program { work, dir: dir.into(), slot, file: create(&dir.join("file"), slot)? })
    }

    fn step(&mut self, step: usize) -> io::Result<()> {
        match self.work {
            Work::Create => File::create_new(self.dir.join(step.to_string())).map(drop),
            Work::Write => self.file.write_all_at(&piece(step), (step * PIECE) as u64),
            Work::Fsync => {
                self.file.write_all_at(&piece(step), (step * PIECE) as u64)?;
                self.file.sync_all()
            }
            Work::Rename => {
                let new = self.dir.join("new");
                let mut file = create(&new, self.slot)?;
                file.write_all(&piece(step))?;
                file.sync_all()?;
                fs::rename(new, self.dir.join("name"))
            }
        }
    }
}

impl Work {
    /// Whether a step succeeds in this directory, which is made if it is not there.
    pub(crate) fn works(self, dir: &Path) -> bool {
        let made = fs::create_dir(dir).or_else(|_| fs::metadata(dir).map(drop));
        made.and_then(|()| Program::start(self, dir, None)?.step(0)).is_ok()
    }

    /// What is missing, in a copy of its directory, of so many steps that were acknowledged.
    pub(crate) fn lost(self, dir: &Path, steps: usize) -> Option<String> {
        let read = |name: &str| fs::read(dir.join(name)).unwrap_or_default();
        match self {
            Work::Create => {
                let lost: Vec<usize> =
                    (0..steps).filter(|step| !dir.join(step.to_string()).exists()).collect();
                (!lost.is_empty()).then(|| format!("of {steps} files {lost:?} are lost"))
            }
            Work::Write | Work::Fsync => {
                let found = read("file");
                let is_lost =
                    |step: &usize| found.get(step * PIECE..(step + 1) * PIECE) != Some(&piece(*step)[..]);
                let lost: Vec<usize> = (0..steps).filter(is_lost).collect();
                (!lost.is_empty()).then(|| format!("of {steps} writes {lost:?} are lost"))
            }
            Work::Rename => {
                let found = read("name");
                // The step that was not acknowledged may have been made.
                let is_one = steps == 0 || (steps - 1..=steps).any(|step| found == piece(step));
                (!is_one).then(|| format!("{} bytes of {:?} after {steps} steps", found.len(), found.first()))
            }
        }
    }
}

/// A thread that works or reads until some time after the fault, or until an error.
pub(crate) struct Worker {
    had_fault: Arc<AtomicBool>,
    under_way: Receiver<()>,
    ended: Receiver<Ended>,
}

impl Worker {
    /// Does the work in a directory, with files whose first strips are in a slot if one is given.
    pub(crate) fn start(work: Work, dir: &Path, slot: Option<u64>) -> Worker {
        let mut program = Program::start(work, dir, slot).unwrap();
        Worker::of(STEPS_AFTER, move |step| program.step(step))
    }

    /// Reads a file through an open descriptor, past the kernel's cache.
    pub(crate) fn reads(path: &Path) -> Worker {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let blocks = file.metadata().unwrap().len() as usize / READ_BYTES;
        Worker::of(READS_AFTER, move |step| {
            // A prime number of blocks further each time, so that each store has its turn soon.
            let at = (step * 37 % blocks * READ_BYTES) as u64;
            let mut found = [0; READ_BYTES];
            file.read_exact_at(&mut found, at)?;
            match found == block(at) {
                true => Ok(()),
                false => Err(io::Error::other(format!("other bytes at {at}"))),
            }
        })
    }

    fn of(steps_after: usize, mut step: impl FnMut(usize) -> io::Result<()> + Send + 'static) -> Worker {
        let had_fault = Arc::new(AtomicBool::new(false));
        let ((begins, under_way), (ends, ended)) = (channel(), channel());
        let seen = Arc::clone(&had_fault);
        std::thread::spawn(move || {
            let (mut steps, mut after, mut slowest_seconds) = (0, 0, 0.0_f64);
            let error = loop {
                after += usize::from(seen.load(Ordering::Acquire));
                if after > steps_after {
                    break None;
                }
                let watch = Stopwatch::start();
                let done = step(steps);
                slowest_seconds = slowest_seconds.max(watch.seconds());
                match done {
                    Ok(()) => steps += 1,
                    Err(e) => break Some(e),
                }
                if steps == STEPS_BEFORE {
                    // The test may have failed meanwhile.
                    let _ = begins.send(());
                }
            };
            // Or the mount would be busy.
            drop(step);
            let _ = ends.send(Ended { steps, slowest_seconds, error });
        });
        Worker { had_fault, under_way, ended }
    }

    /// Waits until some steps are made.
    pub(crate) fn is_under_way(&self) {
        self.under_way.recv_timeout(HANGS).expect("it works before the fault");
    }

    /// Says that the fault is there.
    pub(crate) fn had_fault(&self) {
        self.had_fault.store(true, Ordering::Release);
    }

    /// How it ended; none if it hangs.
    pub(crate) fn ends(self) -> Option<Ended> {
        self.ended.recv_timeout(HANGS).ok()
    }
}
