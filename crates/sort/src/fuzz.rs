//! Entry points for fuzzers: arbitrary manifests, and damaged files of a killed sort. Each function takes any bytes
//! and panics if an invariant is broken. `fuzz/` calls them, and the tests replay its corpora.
//!
//! Model: a sort of half a megabyte with tiny pages is killed once on a simulated disk. The fuzzer damages the files
//! that it left, and another sort resumes from them.
//! Invariant: damage is detected and the sort starts over, so the output is right. A forged manifest with valid
//! hashes may also cause a clean error or another order of equal keys, but never other records or unordered keys.
//! Invariant: nothing here is compiled into a release.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_base::rng::Rng;
use thalweg_io::sim::Sim;
use thalweg_io::{Location, hidden};
use thalweg_pump::{Inputs, Watch};
use thalweg_record::{KeyPart, Layout};

use crate::geometry::TINY;
use crate::job::run;
use crate::leftover;
use crate::manifest::{self, Frames, MAGIC, frame};
use crate::names::Names;
use crate::options::Sort;
use crate::validate::Validator;
use crate::{Error, Result};

const INPUT_BYTES: usize = 500_000;
const MANIFEST: &str = "/out/.sorted.thalweg-manifest";
/// The name of the scratch file in the manifests of the corpus.
const SCRATCH: &str = "/scratch/.sorted.thalweg-scratch";

/// The path of the scratch file.
fn scratch_path() -> PathBuf {
    Path::new("/scratch").join(hidden::elsewhere(Path::new("/out/sorted"), "scratch"))
}

/// The files that a killed sort left, and its expected output.
struct Left {
    layout: Layout,
    key: KeyPart,
    input: Vec<u8>,
    expected: Vec<u8>,
    manifest: Vec<u8>,
    scratch: Vec<u8>,
}

impl Left {
    /// One of a few prepared cases: each layout, killed early or late.
    fn one_of(choice: u8) -> &'static Left {
        static ALL: [OnceLock<Left>; 6] = [const { OnceLock::new() }; 6];
        let choice = usize::from(choice % 6);
        let layout = match choice {
            4.. => Layout::Prefixed,
            _ if choice & 1 == 1 => Layout::Lines,
            _ => Layout::Fixed(100),
        };
        ALL[choice].get_or_init(|| Left::new(layout, if choice & 2 == 2 || choice == 5 { 90 } else { 60 }))
    }

    fn new(layout: Layout, percent: u64) -> Left {
        let input = match layout {
            Layout::Fixed(_) => some_records(),
            _ => some_of_any_length(layout),
        };
        // Only a few keys, so that there are many duplicates and their order is tested.
        let key = KeyPart { offset: 0, length: 2, descending: layout == Layout::Lines };
        let sim = stage(&input);
        let sort = sort_on(&sim, layout, key);
        let watch = Killer { sim: sim.clone(), left: (input.len() as u64 * percent / 100).into() };
        let error = tinily(|| run(&sort, &watch)).expect_err("it was killed");
        assert!(matches!(&error, Error::Io(e) if Sim::is_crash(e)), "{error}");
        let sim = sim.restart();
        let expected = sorted(&input, layout, key);
        let read = |path: &Path| sim.get(path).expect("it was left");
        Left {
            expected,
            manifest: read(MANIFEST.as_ref()),
            scratch: read(&scratch_path()),
            layout,
            key,
            input,
        }
    }

    /// Whether these are the right records in order, ignoring the order of equal keys.
    fn is_in_order(&self, output: &[u8]) -> bool {
        let (layout, key) = (self.layout, self.key);
        let mut all = [records_of(output, layout), records_of(&self.input, layout)];
        let in_order = all[0].is_sorted_by(|a, b| order(layout, key, a, b).is_le());
        all.iter_mut().for_each(|records| records.sort_unstable());
        in_order && all[0] == all[1]
    }

    /// Resumes from this manifest and this scratch file on a new disk.
    fn resume(&self, manifest: &[u8], scratch: &[u8]) -> (Sim, Result<thalweg_api::Receipt>) {
        let sim = stage(&self.input);
        sim.put(scratch_path(), scratch);
        sim.put(MANIFEST, manifest);
        let result = self.sort(&sim);
        (sim, result)
    }

    /// Runs the sort on this disk.
    fn sort(&self, sim: &Sim) -> Result<thalweg_api::Receipt> {
        tinily(|| run(&sort_on(sim, self.layout, self.key), &Unwatched))
    }
}

/// A sort of the input on this disk, which resumes from the files that are there.
fn sort_on(sim: &Sim, layout: Layout, key: KeyPart) -> Sort {
    let io = sim.io();
    let at = |path: &str| Location::new(&io, path);
    Sort {
        inputs: vec![at("/in/0").as_input()],
        output: at("/out/sorted"),
        keys: vec![key],
        resume: true,
        ..Sort::new(layout, 16 << 20, vec![at("/scratch")])
    }
}

/// A disk with the input. It is the same each time, so the identity of the sort is the same.
fn stage(input: &[u8]) -> Sim {
    let sim = Sim::new(7);
    ["/in", "/out", "/scratch"].iter().for_each(|path| sim.make_dir(path));
    sim.put("/in/0", input);
    sim
}

fn tinily<T>(sort: impl FnOnce() -> T) -> T {
    TINY.set(true);
    let result = sort();
    TINY.set(false);
    result
}

fn some_records() -> Vec<u8> {
    let mut rng = Rng::new(1);
    (0..INPUT_BYTES / 100 * 100).map(|at| rng.below(if at % 100 < 2 { 9 } else { 256 }) as u8).collect()
}

fn some_of_any_length(layout: Layout) -> Vec<u8> {
    let mut rng = Rng::new(2);
    let mut records = Vec::new();
    while records.len() < INPUT_BYTES {
        // Occasionally a record is longer than a page.
        let len = if rng.one_in(600) { 20_000 } else { rng.below(300) };
        let record: Vec<u8> = (0..len).map(|_| b'a' + rng.below(9) as u8).collect();
        layout.push(&record, &mut records);
    }
    records
}

/// A reference sort.
fn sorted(input: &[u8], layout: Layout, key: KeyPart) -> Vec<u8> {
    let mut records = records_of(input, layout);
    records.sort_by(|a, b| order(layout, key, a, b));
    records.concat()
}

fn records_of(bytes: &[u8], layout: Layout) -> Vec<&[u8]> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (record, later) = rest.split_at(layout.length(rest).map_or(rest.len(), |n| n.min(rest.len())));
        records.push(record);
        rest = later;
    }
    records
}

fn order(layout: Layout, key: KeyPart, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let of = |record: &[u8]| -> Vec<u8> {
        let contents = layout.contents(record).iter().copied();
        let bytes = contents.filter(|b| layout != Layout::Lines || *b != b'\n');
        bytes.skip(key.offset as usize).take(key.length as usize).collect()
    };
    if key.descending { of(b).cmp(&of(a)) } else { of(a).cmp(&of(b)) }
}

/// Kills the process after a number of bytes.
struct Killer {
    sim: Sim,
    left: AtomicU64,
}

impl Watch for Killer {
    fn advance(&self, bytes: u64) {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(bytes);
        self.left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.sim.kill();
        }
    }
}

struct Unwatched;

impl Watch for Unwatched {}

/// Takes numbers off the front of the fuzzer's bytes, and zeros after their end.
struct Taker<'b>(&'b [u8]);

impl<'b> Taker<'b> {
    fn slice(&mut self, len: usize) -> &'b [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn number<const N: usize>(&mut self) -> usize {
        let mut bytes = [0; 8];
        let head = self.slice(N);
        bytes[..head.len()].copy_from_slice(head);
        u64::from_le_bytes(bytes) as usize
    }
}

/// Damages the files of a killed sort: each step of the fuzzer's bytes is one kind of damage at one place.
pub fn scratch(data: &[u8]) {
    let mut from = Taker(data);
    let left = Left::one_of(from.number::<1>() as u8);
    let (mut manifest, mut scratch) = (left.manifest.clone(), left.scratch.clone());
    let mut lies = false;
    for _ in 0..8 {
        if from.0.is_empty() {
            break;
        }
        let step = from.number::<1>();
        let bytes = if step & 8 == 8 { &mut manifest } else { &mut scratch };
        match step % 8 {
            0 => flip(bytes, from.number::<4>()),
            1 => bytes.truncate(from.number::<4>() % (bytes.len() + 1)),
            2 => bytes.resize(bytes.len() + from.number::<2>(), 0xa5),
            3 => overwrite(bytes, from.number::<3>(), from.slice(12)),
            4 => bytes.fill(0),
            // Swap one page for another.
            5 => {
                let page = |n: usize| n * 4096..(n + 1) * 4096;
                let (a, b, pages) = (from.number::<1>(), from.number::<1>(), bytes.len() / 4096);
                if pages > 0 {
                    bytes.copy_within(page(a % pages), page(b % pages).start);
                }
            }
            _ => {
                let (number, at, bytes) = (from.number::<1>(), from.number::<2>(), from.slice(8));
                lies |= lie(&mut manifest, number, at, bytes);
            }
        }
    }
    let (sim, result) = left.resume(&manifest, &scratch);
    let output = sim.get("/out/sorted");
    match result {
        Ok(receipt) => {
            let output = output.expect("there is an output");
            let right = output == left.expected || lies && left.is_in_order(&output);
            assert!(receipt.holds && right, "a wrong output: {receipt:?}");
            assert_eq!(sim.names(), ["/in/0", "/out/sorted"].map(PathBuf::from), "what is left");
        }
        Err(e) => {
            assert!(lies, "damage is no error where all can be done again: {e}");
            assert!(output.is_none(), "an output beside an error: {e}");
            assert_eq!(e.to_string().lines().count(), 1, "{e}");
            assert!(!matches!(e, Error::Stopped | Error::Underestimated), "{e}");
        }
    }
    assert_eq!(sim.open_files(), 0, "files left open");
}

fn flip(bytes: &mut [u8], bit: usize) {
    if let Some(bits) = bytes.len().checked_mul(8).filter(|bits| *bits > 0) {
        bytes[bit % bits / 8] ^= 1 << (bit % 8);
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let at = at % (bytes.len() + 1);
    let n = with.len().min(bytes.len() - at);
    bytes[at..at + n].copy_from_slice(&with[..n]);
}

/// Overwrites bytes at `at` in frame `number` and updates the hash. Returns whether anything changed.
fn lie(manifest: &mut Vec<u8>, number: usize, at: usize, with: &[u8]) -> bool {
    let Some(mut frames) = frames_of(manifest) else { return false };
    let number = number % frames.len();
    let (_, payload) = &mut frames[number];
    // High numbers count from the end, where the newest data is.
    let at = if at >= 1 << 15 { payload.len().saturating_sub(0xffff - at) } else { at };
    let before = payload.clone();
    overwrite(payload, at, with);
    let changed = *payload != before;
    *manifest = MAGIC.to_vec();
    frames.iter().for_each(|(kind, payload)| manifest.extend(frame(*kind, payload)));
    changed
}

/// The frames of a manifest whose start is still valid.
fn frames_of(manifest: &[u8]) -> Option<Vec<(u8, Vec<u8>)>> {
    let mut from = Frames::over(manifest);
    if !from.begin().expect("it is in memory") {
        return None;
    }
    let frames: Vec<_> = std::iter::from_fn(|| from.next().expect("it is in memory")).collect();
    (!frames.is_empty()).then_some(frames)
}

/// Parses any bytes as a manifest, and any frames with valid hashes: a parsed manifest must be written back unchanged,
/// and an accepted one must be safe to resume from.
pub fn manifest(data: &[u8]) {
    let mut from = Taker(data);
    let mut bytes = Vec::new();
    match from.number::<1>() % 3 {
        0 => bytes.extend_from_slice(from.0),
        1 => {
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(from.0);
        }
        _ => {
            bytes.extend_from_slice(MAGIC);
            while !from.0.is_empty() {
                let (kind, len) = (from.number::<1>(), from.number::<2>());
                bytes.extend(frame(kind as u8, from.slice(len)));
            }
        }
    }
    let Some(contents) = manifest::parse(&bytes) else { return };
    assert!(contents.checkpoints_end <= contents.end && contents.end <= bytes.len() as u64);
    let mut again = MAGIC.to_vec();
    again.extend(manifest::layout_frame(&contents.layout));
    contents.checkpoints.iter().for_each(|checkpoint| again.extend(manifest::checkpoint_frame(checkpoint)));
    assert_eq!(again[..], bytes[..contents.checkpoints_end as usize], "what was read is written as it was");
    let note = contents.note.as_ref().map(manifest::note_frame).unwrap_or_default();
    assert!(bytes[..contents.end as usize].ends_with(&note), "of output notes the last counts");

    let sim = stage(&[b'x'; 50_000]);
    let sort = sort_on(&sim, Layout::Fixed(10), Left::one_of(0).key);
    sim.put(SCRATCH, &[0; 1 << 17]);
    sim.put(MANIFEST, &bytes);
    let inputs = Inputs::open(&sort.inputs, sort.layout).expect("the input is whole");
    let names =
        Names { scratch: Path::new(SCRATCH).file_name().expect("it has one").into(), ..Names::of(&sort) };
    let judge = Validator { sort: &sort, inputs: &inputs, names: &names };
    let Ok(left) = leftover::find(&judge, contents.layout.identity).expect("all files are this user's")
    else {
        leftover::start_over(None, &sort, &names).expect("all can be removed");
        assert_eq!(sim.names(), [Path::new("/in/0")], "what is not gone on from is removed, and no more");
        return;
    };
    let pages = left.resumed.stores.iter().flat_map(|store| &store.pages);
    assert!(pages.map(|page| page.len()).sum::<usize>() <= 50_000);
    assert!(left.resumed.next_page <= 50_000u64.div_ceil(left.geometry.transfer_bytes as u64));
    assert!(left.files.iter().all(|file| file.path == Path::new(SCRATCH)));
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Checkpoint;

    #[test]
    fn damaged_leftovers_make_the_sort_start_over() {
        replay::corpus("scratch", super::scratch);
    }

    #[test]
    fn any_bytes_can_be_read_as_a_manifest() {
        replay::corpus("manifest", super::manifest);
    }

    #[test]
    fn undamaged_leftovers_are_resumed() {
        for choice in 0..6 {
            let left = Left::one_of(choice);
            let (sim, result) = left.resume(&left.manifest, &left.scratch);
            let receipt = result.unwrap();
            assert!(receipt.resumed_bytes > 100_000, "{choice}: {}", receipt.resumed_bytes);
            assert!(sim.get("/out/sorted").as_ref() == Some(&left.expected), "{choice}");
        }
    }

    /// The files of a killed sort with every checkpoint changed.
    fn rewritten(left: &Left, change: impl Fn(&mut Checkpoint)) -> Vec<u8> {
        let mut contents = manifest::parse(&left.manifest).expect("it is sound");
        contents.checkpoints.iter_mut().for_each(change);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(manifest::layout_frame(&contents.layout));
        contents
            .checkpoints
            .iter()
            .for_each(|checkpoint| bytes.extend(manifest::checkpoint_frame(checkpoint)));
        bytes
    }

    /// A scratch file in a directory that does not exist.
    fn gone() -> PathBuf {
        Path::new("/gone").join(scratch_path().file_name().unwrap())
    }

    /// Any user with write access to the output's directory could plant a manifest that named any file as scratch. A
    /// resuming sort then read that file, failed, and removed it. Now only this sort's scratch names are touched.
    #[test]
    fn a_manifest_cannot_cause_removal_of_other_files() {
        let left = Left::one_of(0);
        let precious = "/out/precious";
        let planted = rewritten(left, |checkpoint| checkpoint.files = vec![precious.into()]);
        let sim = stage(&left.input);
        sim.put(precious, &left.scratch);
        sim.put(MANIFEST, &planted);
        let receipt = left.sort(&sim).unwrap();
        assert_eq!(receipt.resumed_bytes, 0);
        assert!(sim.get(precious).as_ref() == Some(&left.scratch), "it is as it was");
        assert!(sim.get("/out/sorted").as_ref() == Some(&left.expected));
    }

    /// Extents refer to scratch files by their index in a list. Missing files were dropped from that list, so pages
    /// were searched in the wrong file. Now only the last files of the list may be missing.
    #[test]
    fn pages_are_read_from_the_right_file() {
        let left = Left::one_of(1);
        let renumbered = rewritten(left, |checkpoint| {
            checkpoint.files = vec![gone(), scratch_path()];
            let extents = checkpoint.ranges.iter_mut().flat_map(|range| &mut range.extents);
            extents.for_each(|extent| extent.place |= 1 << 56);
        });
        let (sim, result) = left.resume(&renumbered, &left.scratch);
        assert_eq!(result.unwrap().resumed_bytes, 0);
        assert!(sim.get("/out/sorted").as_ref() == Some(&left.expected));
        let more = rewritten(left, |checkpoint| checkpoint.files.push(gone()));
        let (_, result) = left.resume(&more, &left.scratch);
        assert!(result.unwrap().resumed_bytes > 100_000);
    }

    /// The carry of a checkpoint, the start of a record, went from the manifest into the output unchecked, and the
    /// proof agreed with it: a changed byte gave a sorted output of other records. Found by the fuzzer. The carry is
    /// now compared with the input.
    #[test]
    fn a_carry_must_agree_with_the_input() {
        let left = Left::one_of(1);
        let contents = rewritten(left, |checkpoint| {
            if let Some(byte) = checkpoint.carry.first_mut() {
                *byte ^= 1;
            }
        });
        assert!(contents != left.manifest, "there is a carry");
        let (sim, result) = left.resume(&contents, &left.scratch);
        assert_eq!(result.unwrap().resumed_bytes, 0);
        assert!(sim.get("/out/sorted").as_ref() == Some(&left.expected));
    }

    /// The number of bytes still to spill was taken from the manifest as it was; adding the safety margin of the
    /// preflight check to the largest possible number overflowed. Found by the fuzzer.
    #[test]
    fn an_impossible_layout_is_rejected() {
        let left = Left::one_of(2);
        let mut manifest = left.manifest.clone();
        assert!(lie(&mut manifest, 0, 16 + 10 * 8, &u64::MAX.to_le_bytes()));
        let (_, result) = left.resume(&manifest, &left.scratch);
        assert_eq!(result.unwrap().resumed_bytes, 0);
    }
}
