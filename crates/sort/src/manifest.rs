//! The manifest: the durable list of the work that a sort has finished, from which a later run can resume.
//!
//! ```text
//! file    "thalweg manifest 2\n" frame frame frame ...           beside the output, under a hidden name
//! frame   [length u32][hash u64: XXH3-64 of kind and payload][kind u8][payload]   numbers are little-endian
//! ```
//!
//! The first frame (kind 1) identifies the sort and has its layout. Frames of kind 2 are checkpoints: which pages of
//! the input are completely in scratch, and where. A frame of kind 3 invalidates the manifest, because its extents
//! are being freed. Frames of kind 4 follow all checkpoints and are output notes: how much of the output is durable.
//! Invariant: frames are only appended. The manifest ends at the first torn or damaged frame, and the frames before
//! it are valid. A run that resumes first removes the frames that it does not use. A manifest with another identity
//! is not used.
//! `docs/formats/manifest.md` specifies every byte.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_api::Proof;
use thalweg_io::{Access, File, Location};
use thalweg_record::SplitPoint;
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;
use crate::geometry::Geometry;
use crate::scratch::Extent;

pub(crate) const MAGIC: &[u8] = b"thalweg manifest 2\n";
const FRAME_HEAD_BYTES: usize = 13;
const KIND_LAYOUT: u8 = 1;
const KIND_CHECKPOINT: u8 = 2;
const KIND_VOID: u8 = 3;
const KIND_OUTPUT: u8 = 4;
/// The maximum size of a manifest.
const BYTES_MAX: u64 = 1 << 32;
/// The longest frame to read when only the scratch files are needed. With pages of 1 MiB it describes 1/32 of 8 TiB.
const LOOKED_AT_BYTES_MAX: u64 = 4 << 20;
/// To recognise a scratch file, at most this many of its pages are compared with the manifest.
pub(crate) const PAGES_LOOKED_AT: usize = 8;
/// The maximum number of files: their number in an extent has one byte.
const FILES_MAX: usize = 256;

/// The identity of the sort, and its layout.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    /// A hash of everything that must be equal for a run to resume: inputs, keys, memory.
    pub(crate) identity: u128,
    pub(crate) geometry: Geometry,
    pub(crate) split_points: Vec<SplitPoint>,
}

/// What a range gained since the last checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RangeGain {
    /// Totals, not differences.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// New pages, in order.
    pub(crate) extents: Vec<Extent>,
}

/// A state of the first pass that is completely in scratch.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Checkpoint {
    /// All pages of the input before this one are in scratch, except for the carry.
    pub(crate) next_page: u64,
    /// The start of the record that continues in page `next_page`, and its place.
    pub(crate) carry: Vec<u8>,
    pub(crate) carry_place: u64,
    /// The proof of all records before the carry.
    pub(crate) proof: Proof,
    /// The scratch files, in the order of their numbers in extents.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) ranges: Vec<RangeGain>,
}

/// How much of the output is durable: the records of the first ranges.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OutputNote {
    /// The number of ranges that are completely in the output.
    pub(crate) ranges: u64,
    /// Their bytes in the output.
    pub(crate) bytes: u64,
    /// Whether only the first of equal keys was kept.
    pub(crate) unique: bool,
    /// The proof of the output so far, and the proof of the records that were dropped.
    pub(crate) proof: Proof,
    pub(crate) dropped: Proof,
    /// The last record of the output so far.
    pub(crate) last: Vec<u8>,
    /// XXH3-64 of the last page of these bytes, or of all if they are fewer.
    pub(crate) tail_hash: u64,
}

/// The contents of a manifest.
#[derive(Debug, PartialEq)]
pub(crate) struct Contents {
    pub(crate) layout: Layout,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// The last output note.
    pub(crate) note: Option<OutputNote>,
    /// The end of the checkpoints, and the end of the valid frames.
    pub(crate) checkpoints_end: u64,
    pub(crate) end: u64,
}

/// A manifest that is being written.
pub(crate) struct Manifest {
    file: File,
    end: Mutex<u64>,
    keep: AtomicBool,
    is_void: AtomicBool,
    /// Whether it has a checkpoint.
    has_checkpoint: AtomicBool,
    /// Whether this run has appended a checkpoint, which names all of its scratch files.
    has_own_checkpoint: AtomicBool,
    /// Whether it has a valid output note.
    has_note: AtomicBool,
}

impl Manifest {
    /// Starts a new manifest.
    pub(crate) fn create(location: &Location, layout: &Layout) -> Result<Manifest> {
        let manifest = Manifest::at(location.open(Access::Create)?, MAGIC.len() as u64);
        manifest.keep(false);
        manifest.file.write_at(0, MAGIC)?;
        manifest.append(&layout_frame(layout))?;
        Ok(manifest)
    }

    fn at(file: File, end: u64) -> Manifest {
        Manifest {
            file,
            end: Mutex::new(end),
            keep: true.into(),
            is_void: false.into(),
            has_checkpoint: false.into(),
            has_own_checkpoint: false.into(),
            has_note: false.into(),
        }
    }

    /// The last checkpoint of the manifest at a location, if the manifest is valid. Of the listed pages, it contains
    /// only the first [`PAGES_LOOKED_AT`] of each scratch file, all in one range.
    pub(crate) fn look(location: &Location) -> Option<Checkpoint> {
        let file = location.open(Access::Update).ok()?;
        let mut frames = Frames::of(&file, LOOKED_AT_BYTES_MAX).ok()?;
        let layout = frames.layout().ok()??;
        frames.contents(layout, keep_first).ok()??.checkpoints.pop()
    }

    /// Opens the manifest at a location and reads it, if it is valid and has at most `bytes_max` bytes. With another
    /// identity only its layout is read.
    pub(crate) fn reopen(
        location: &Location,
        identity: u128,
        bytes_max: u64,
    ) -> thalweg_io::Result<Option<(Manifest, Contents)>> {
        let file = location.open(Access::Update)?;
        let mut frames = Frames::of(&file, bytes_max)?;
        let Some(layout) = frames.layout()? else { return Ok(None) };
        let contents = match layout.identity == identity {
            false => Some(Contents::only(layout, frames.at)),
            // A part of a manifest is not enough to decide whether the manifest is valid.
            true if frames.len > bytes_max => None,
            true => frames.contents(layout, Vec::push)?,
        };
        let Some(contents) = contents else { return Ok(None) };
        let manifest = Manifest::at(file, contents.end);
        manifest.has_checkpoint.store(!contents.checkpoints.is_empty(), Ordering::Relaxed);
        Ok(Some((manifest, contents)))
    }

    /// Removes torn frames, and the output notes if they are not used. The removal is durable before their data is
    /// overwritten, so that no later run trusts an old frame.
    pub(crate) fn continue_after(&self, contents: &Contents, with_note: bool) -> Result<()> {
        let mut end = self.end.lock().expect("no lane panics");
        *end = if with_note { contents.end } else { contents.checkpoints_end };
        self.has_note.store(with_note, Ordering::Relaxed);
        self.file.set_len(*end)?;
        Ok(self.file.sync()?)
    }

    /// Appends a checkpoint.
    pub(crate) fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.append(&checkpoint_frame(checkpoint))?;
        self.has_checkpoint.store(true, Ordering::Relaxed);
        self.has_own_checkpoint.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it lists scratch files of this run, and not only those of earlier runs.
    pub(crate) fn has_own_checkpoint(&self) -> bool {
        self.has_own_checkpoint.load(Ordering::Relaxed)
    }

    /// Invalidates the manifest, because its extents will be reused.
    pub(crate) fn void(&self) -> Result<()> {
        self.is_void.store(true, Ordering::Relaxed);
        self.append(&frame(KIND_VOID, &[]))
    }

    /// Whether the manifest is invalid.
    pub(crate) fn is_void(&self) -> bool {
        self.is_void.load(Ordering::Relaxed)
    }

    /// Appends an output note. The output that it describes must already be durable.
    pub(crate) fn output_note(&self, note: &OutputNote) -> Result<()> {
        assert!(!self.is_void(), "nothing is noted in a manifest that does not hold");
        self.append(&note_frame(note))?;
        self.has_note.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a later run can resume after a part of the output.
    pub(crate) fn has_note(&self) -> bool {
        self.has_note.load(Ordering::Relaxed) && !self.is_void()
    }

    /// Whether a later run can resume at all.
    pub(crate) fn is_of_use(&self) -> bool {
        self.has_note() || (self.has_checkpoint.load(Ordering::Relaxed) && !self.is_void())
    }

    /// Sets whether the file stays when this is dropped. A new manifest stays only on request; that of an earlier run
    /// stays until this run has adopted everything in it.
    pub(crate) fn keep(&self, keep: bool) {
        self.keep.store(keep, Ordering::Relaxed);
    }

    fn append(&self, frame: &[u8]) -> Result<()> {
        let mut end = self.end.lock().expect("no lane panics");
        self.file.write_at(*end, frame)?;
        *end += frame.len() as u64;
        Ok(())
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        if !self.keep.load(Ordering::Relaxed) {
            // If the name cannot be removed, the next run tries again.
            let _ = self.file.location().remove();
        }
    }
}

/// A frame with its head.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let hashed = [&[kind], payload].concat();
    let len = (payload.len() as u32).to_le_bytes();
    [&len, &xxh3_64(&hashed).to_le_bytes()[..], &hashed].concat()
}

/// Reads bytes at an offset and returns how many.
type ReadAt<'f> = dyn Fn(u64, &mut [u8]) -> thalweg_io::Result<usize> + 'f;

/// Reads the frames of a manifest one after the other, and checks the hash of each.
pub(crate) struct Frames<'f> {
    /// Reads fewer bytes than requested only at the end.
    read: Box<ReadAt<'f>>,
    at: u64,
    len: u64,
    /// The maximum length of a frame.
    bytes_max: u64,
}

impl<'f> Frames<'f> {
    fn of(file: &File, bytes_max: u64) -> thalweg_io::Result<Frames<'f>> {
        let len = Some(file.metadata()?.len).filter(|len| *len < BYTES_MAX).unwrap_or(0);
        let file = file.clone();
        Ok(Frames { read: Box::new(move |at, into| file.read_at(at, into)), at: 0, len, bytes_max })
    }

    /// Reads from memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn over(bytes: &'f [u8]) -> Frames<'f> {
        let read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
            Ok(into.len())
        };
        Frames { read: Box::new(read), at: 0, len: bytes.len() as u64, bytes_max: u64::MAX }
    }

    fn take(&mut self, len: u64) -> thalweg_io::Result<Option<Vec<u8>>> {
        if len > (self.len - self.at).min(self.bytes_max) {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        let read = (self.read)(self.at, &mut bytes)?;
        self.at += len;
        Ok((read == bytes.len()).then_some(bytes))
    }

    /// Reads the magic; false if this is not a manifest.
    pub(crate) fn begin(&mut self) -> thalweg_io::Result<bool> {
        Ok(self.take(MAGIC.len() as u64)?.as_deref() == Some(MAGIC))
    }

    /// The kind and payload of the next frame, if it is valid.
    pub(crate) fn next(&mut self) -> thalweg_io::Result<Option<(u8, Vec<u8>)>> {
        let Some(head) = self.take(FRAME_HEAD_BYTES as u64 - 1)? else { return Ok(None) };
        let (len, hash) = head.split_first_chunk().expect("it has so many bytes");
        let Some(mut hashed) = self.take(u64::from(u32::from_le_bytes(*len)) + 1)? else { return Ok(None) };
        Ok((*hash == xxh3_64(&hashed).to_le_bytes()).then(|| (hashed.remove(0), hashed)))
    }

    /// The layout of a manifest that begins here.
    fn layout(&mut self) -> thalweg_io::Result<Option<Layout>> {
        Ok(match self.begin()?.then(|| self.next()).transpose()?.flatten() {
            Some((KIND_LAYOUT, payload)) => read_layout(&mut Reader(&payload)),
            _ => None,
        })
    }

    /// The remaining contents, unless the manifest is invalid. `keep` adds each checkpoint to those before it.
    fn contents(
        mut self,
        layout: Layout,
        mut keep: impl FnMut(&mut Vec<Checkpoint>, Checkpoint),
    ) -> thalweg_io::Result<Option<Contents>> {
        let mut contents = Contents::only(layout, self.at);
        while let Some((kind, payload)) = self.next()? {
            let from = &mut Reader(&payload);
            let read = match kind {
                KIND_CHECKPOINT if contents.note.is_none() => {
                    read_checkpoint(from).map(|checkpoint| keep(&mut contents.checkpoints, checkpoint))
                }
                KIND_OUTPUT => read_note(from).map(|note| contents.note = Some(note)),
                _ => None,
            };
            if read.is_none() {
                return Ok(None);
            }
            contents.end = self.at;
            if contents.note.is_none() {
                contents.checkpoints_end = contents.end;
            }
        }
        Ok(Some(contents))
    }
}

impl Contents {
    fn only(layout: Layout, end: u64) -> Contents {
        Contents { layout, checkpoints: Vec::new(), note: None, checkpoints_end: end, end }
    }
}

/// Keeps only the last checkpoint, with the first pages of each scratch file.
fn keep_first(kept: &mut Vec<Checkpoint>, next: Checkpoint) {
    let before = kept.pop().map_or(Vec::new(), |last| last.ranges);
    let gains = before.iter().chain(&next.ranges).flat_map(|gain| &gain.extents);
    let mut of_file = [0; FILES_MAX];
    let is_first = |extent: &&Extent| {
        let count = &mut of_file[extent.directory() as usize];
        *count += 1;
        *count <= PAGES_LOOKED_AT
    };
    let extents = gains.filter(is_first).copied().collect();
    kept.push(Checkpoint { ranges: vec![RangeGain { extents, ..RangeGain::default() }], ..next });
}

/// Parses the bytes of a manifest; `None` if it is invalid.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn parse(bytes: &[u8]) -> Option<Contents> {
    let mut frames = Frames::over(bytes);
    let layout = frames.layout().expect("it is in memory")?;
    frames.contents(layout, Vec::push).expect("it is in memory")
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_proof(out: &mut Vec<u8>, proof: &Proof) {
    out.extend_from_slice(&proof.records.to_le_bytes());
    out.extend_from_slice(&proof.bytes.to_le_bytes());
    out.extend_from_slice(&proof.checksum.to_le_bytes());
}

/// The first frame.
pub(crate) fn layout_frame(layout: &Layout) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&layout.identity.to_le_bytes());
    for number in layout.geometry.to_numbers() {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&(layout.split_points.len() as u32).to_le_bytes());
    for split_point in &layout.split_points {
        out.extend_from_slice(&split_point.origin.to_le_bytes());
        put_bytes(&mut out, &split_point.normal);
    }
    frame(KIND_LAYOUT, &out)
}

fn read_layout(from: &mut Reader<'_>) -> Option<Layout> {
    let identity = from.u128()?;
    let mut numbers = [0; Geometry::NUMBERS];
    for number in &mut numbers {
        *number = from.u64()?;
    }
    let geometry = Geometry::from_numbers(&numbers)?;
    let count = from.u32()?;
    let mut split_points: Vec<SplitPoint> = Vec::new();
    for _ in 0..count {
        let origin = from.u64()?;
        let split_point = SplitPoint { normal: from.bytes()?.to_vec(), origin };
        if split_points.last().is_some_and(|last| *last >= split_point) {
            return None;
        }
        split_points.push(split_point);
    }
    from.0.is_empty().then_some(Layout { identity, geometry, split_points })
}

pub(crate) fn checkpoint_frame(c: &Checkpoint) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&c.next_page.to_le_bytes());
    out.extend_from_slice(&c.carry_place.to_le_bytes());
    put_bytes(&mut out, &c.carry);
    put_proof(&mut out, &c.proof);
    out.extend_from_slice(&(c.files.len() as u32).to_le_bytes());
    for file in &c.files {
        put_bytes(&mut out, std::os::unix::ffi::OsStrExt::as_bytes(file.as_os_str()));
    }
    out.extend_from_slice(&(c.ranges.len() as u32).to_le_bytes());
    for range in &c.ranges {
        out.extend_from_slice(&range.records.to_le_bytes());
        out.extend_from_slice(&range.bytes.to_le_bytes());
        out.extend_from_slice(&(range.extents.len() as u32).to_le_bytes());
        for e in &range.extents {
            out.extend_from_slice(&e.place.to_le_bytes());
            out.extend_from_slice(&e.len.to_le_bytes());
            out.extend_from_slice(&e.hash.to_le_bytes());
        }
    }
    frame(KIND_CHECKPOINT, &out)
}

fn read_checkpoint(from: &mut Reader<'_>) -> Option<Checkpoint> {
    let (next_page, carry_place) = (from.u64()?, from.u64()?);
    let carry = from.bytes()?.to_vec();
    let proof = from.proof()?;
    let mut files = Vec::new();
    for _ in 0..Some(from.u32()?).filter(|count| *count as usize <= FILES_MAX)? {
        files.push(PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(
            from.bytes()?,
        )));
    }
    let mut ranges = Vec::new();
    for _ in 0..from.u32()? {
        let (records, bytes) = (from.u64()?, from.u64()?);
        let mut extents = Vec::new();
        for _ in 0..from.u32()? {
            let extent = Extent { place: from.u64()?, len: from.u32()?, hash: from.u32()? };
            if extent.directory() as usize >= files.len() {
                return None;
            }
            extents.push(extent);
        }
        ranges.push(RangeGain { records, bytes, extents });
    }
    from.0.is_empty().then_some(Checkpoint { next_page, carry, carry_place, proof, files, ranges })
}

pub(crate) fn note_frame(note: &OutputNote) -> Vec<u8> {
    let mut out = Vec::new();
    let OutputNote { proof, dropped, .. } = note;
    for number in [note.ranges, note.bytes, u64::from(note.unique), note.tail_hash] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    put_proof(&mut out, proof);
    put_proof(&mut out, dropped);
    out.extend_from_slice(&proof.unordered.to_le_bytes());
    out.extend_from_slice(&proof.duplicates.to_le_bytes());
    put_bytes(&mut out, &note.last);
    frame(KIND_OUTPUT, &out)
}

fn read_note(from: &mut Reader<'_>) -> Option<OutputNote> {
    let (ranges, bytes) = (from.u64()?, from.u64()?);
    let unique = match from.u64()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let tail_hash = from.u64()?;
    let mut proof = from.proof()?;
    let dropped = from.proof()?;
    (proof.unordered, proof.duplicates) = (from.u64()?, from.u64()?);
    let last = from.bytes()?.to_vec();
    from.0.is_empty().then_some(OutputNote { ranges, bytes, unique, proof, dropped, last, tail_hash })
}

/// Takes numbers off the front of some bytes; `None` if too few bytes are left.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    /// The sums of a proof.
    fn proof(&mut self) -> Option<Proof> {
        let (records, bytes, checksum) = (self.u64()?, self.u64()?, self.u128()?);
        Some(Proof { records, bytes, checksum, ..Proof::default() })
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Given;
    use proptest::prelude::*;
    use thalweg_base::units::MIB;

    fn sample() -> (Contents, Vec<u8>) {
        let given = Given {
            memory_bytes: 64 * MIB,
            resident_bytes: 3 * MIB,
            lanes: 2,
            input_bytes: 500 * MIB,
            records: 5 << 20,
            any_length: false,
            is_stream: false,
        };
        let split_point = |b: u8| SplitPoint { normal: vec![b; 3], origin: u64::from(b) };
        let layout = Layout {
            identity: 7,
            geometry: Geometry::of(&given).unwrap(),
            split_points: vec![split_point(1), split_point(2)],
        };
        let checkpoint = |n: u64| Checkpoint {
            next_page: n,
            carry: vec![9; 5],
            carry_place: n * 100,
            proof: Proof { records: n, bytes: n * 100, checksum: u128::from(n) << 100, ..Proof::default() },
            files: vec![PathBuf::from("/a/b")],
            ranges: vec![RangeGain {
                records: n,
                bytes: n,
                extents: vec![Extent { place: n << 12, len: 77, hash: 5 }],
            }],
        };
        let checkpoints = vec![checkpoint(3), checkpoint(6)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(layout_frame(&layout));
        checkpoints.iter().for_each(|c| bytes.extend(checkpoint_frame(c)));
        let checkpoints_end = bytes.len() as u64;
        bytes.extend(note_frame(&note(1)));
        bytes.extend(note_frame(&note(2)));
        let end = bytes.len() as u64;
        (Contents { layout, checkpoints, note: Some(note(2)), checkpoints_end, end }, bytes)
    }

    fn note(n: u64) -> OutputNote {
        let proof = Proof { records: n, bytes: n, checksum: 1 << 99, unordered: 0, duplicates: n };
        let dropped = Proof { records: 1, ..Proof::default() };
        OutputNote { ranges: n, bytes: n, unique: true, proof, dropped, last: vec![1; 10], tail_hash: 3 }
    }

    #[test]
    fn a_manifest_round_trips() {
        let (contents, bytes) = sample();
        assert_eq!(parse(&bytes), Some(contents));
    }

    #[test]
    fn a_torn_end_loses_only_the_last_frame() {
        let (contents, bytes) = sample();
        let torn = |end: u64| parse(&bytes[..end as usize - 1]).unwrap();
        assert_eq!(torn(contents.end).note, Some(note(1)));
        let checkpoints = torn(contents.checkpoints_end).checkpoints;
        assert_eq!(checkpoints, contents.checkpoints[..1]);
    }

    proptest! {
        /// A flipped bit never yields a checkpoint that was not written.
        #[test]
        fn a_flipped_bit_never_adds_a_checkpoint(at in 0usize..1000, bit in 0u8..8) {
            let (contents, mut bytes) = sample();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Some(read) = parse(&bytes) {
                prop_assert_eq!(read.layout, contents.layout);
                prop_assert!(contents.checkpoints.starts_with(&read.checkpoints));
                prop_assert!([None, Some(note(1))].contains(&read.note));
            }
        }

        #[test]
        fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..300), whole in any::<bool>()) {
            let mut all = if whole { MAGIC.to_vec() } else { Vec::new() };
            all.extend(bytes);
            let _ = parse(&all);
        }
    }
}
