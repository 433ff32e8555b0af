//! Divides sorted files by key, so that several lanes can merge in parallel.
//!
//! Model: split points of about equal distance are chosen from a sample of keys with their origins. In every file, a
//! binary search finds the first record after each split point. A split point includes an origin, so even a single
//! key that fills all files is divided. The concatenated outputs of the lanes are identical to that of a single
//! lane.
//! Invariant: both records at each such place are compared, so a file that is out of order there is detected.
//! Invariant: besides [`Limits::sample_bytes`] of sampled keys, memory contains only one whole record for each split
//! point, and three temporary ones.
//! Non-goals: records that cannot be found from the middle of a file, which are merged by one lane; disorder
//! elsewhere in a file, which the merge detects.

use std::cmp::Ordering;

use thalweg_io::InputFile;
use thalweg_pump::{Input, Inputs, InputsError};
use thalweg_record::{Key, Layout, Walk};

use crate::{Error, Merge, Piece, Result};

/// Sampled records for each lane, which determines how exact split points are.
const SAMPLES_PER_LANE: u64 = 64;
/// Bytes of the first read that searches for the end of a line, and of later ones.
const LOOK_BYTES: usize = 4 << 10;
const LOOK_ON_BYTES: usize = 64 << 10;
/// Bytes of a read that counts lines.
const COUNT_BYTES: usize = 1 << 20;

/// A record, its file, its offset, and its end.
#[derive(Debug, Clone)]
struct Found {
    record: Vec<u8>,
    file: usize,
    from: u64,
    to: u64,
}

/// Memory limits while files are divided.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all sampled keys; long keys are truncated.
    pub sample_bytes: u64,
    /// The maximum bytes of a line.
    pub line_bytes: u64,
}

/// The work of one lane.
#[derive(Debug, Clone)]
pub struct Share {
    /// A part of every input.
    pub pieces: Vec<Piece>,
    /// The start of its stretch of the output.
    pub at: u64,
}

/// Divides files into shares for `lanes` lanes.
pub fn split(inputs: &Inputs, merge: &Merge<'_>, lanes: usize, limits: Limits) -> Result<Vec<Share>> {
    let files = inputs.files();
    let mut from = vec![0; files.len()];
    let mut shares = Vec::with_capacity(lanes);
    let mut at = 0;
    let mut split_points = split_points(inputs, merge, lanes, limits)?.into_iter();
    for _ in 0..lanes {
        let to = match split_points.next() {
            Some(split_point) => bounds(files, (merge, limits), &split_point, &from)?,
            None => files.iter().map(|input| input.metadata.len).collect(),
        };
        let piece =
            |(i, input): (usize, &Input)| Ok(Piece::Bytes { file: input.file()?, from: from[i], to: to[i] });
        let pieces = files.iter().enumerate().map(piece).collect::<Result<_>>()?;
        shares.push(Share { pieces, at });
        // A missing last newline is added to the output.
        let added = |i: usize| from[i] < to[i] && to[i] == files[i].metadata.len && files[i].lacks_newline;
        at += (0..files.len()).map(|i| to[i] - from[i] + u64::from(added(i))).sum::<u64>();
        from = to;
    }
    Ok(shares)
}

/// The records between lanes, in order of (key, origin), at roughly equal distances.
fn split_points(inputs: &Inputs, merge: &Merge<'_>, lanes: usize, limits: Limits) -> Result<Vec<Found>> {
    if lanes < 2 {
        return Ok(Vec::new());
    }
    assert!(merge.layout.is_found_anywhere(), "such files are not parted");
    let count = SAMPLES_PER_LANE * lanes as u64;
    let total: u64 = inputs.file_bytes();
    let mut sampled = Vec::with_capacity(count as usize);
    let probe = |file: usize| Probe::new(&inputs.files()[file], file, merge, limits);
    for i in 0..count {
        let mut at = (u128::from(total) * u128::from(2 * i + 1) / u128::from(2 * count)) as u64;
        for (file, input) in inputs.files().iter().enumerate() {
            if at < input.metadata.len {
                let found = probe(file)?.at(at)?;
                let key_of = |record: &[u8]| merge.key.normal(record, (limits.sample_bytes / count) as usize);
                sampled.extend(found.map(|found| (key_of(&found.record), file, found.from)));
                break;
            }
            at -= input.metadata.len;
        }
    }
    sampled.sort_unstable();
    let chosen = (1..lanes).filter_map(|lane| sampled.get(lane * sampled.len() / lanes));
    let read = |(_, file, from): &(Vec<u8>, usize, u64)| {
        let probe = probe(*file)?;
        probe.at(*from)?.ok_or_else(|| changed(&probe.file))
    };
    let mut split_points = chosen.map(read).collect::<Result<Vec<Found>>>()?;
    // The sample truncates long keys.
    split_points.sort_by(|a, b| compare(merge.key, a, b));
    Ok(split_points)
}

fn changed(file: &InputFile) -> Error {
    InputsError::Changed(file.path().display().to_string()).into()
}

fn compare(key: &Key, a: &Found, b: &Found) -> Ordering {
    key.compare(&a.record, &b.record).then((a.file, a.from).cmp(&(b.file, b.from)))
}

/// For every file, the offset of the first record after the split point; at least `least`.
fn bounds(
    files: &[Input],
    (merge, limits): (&Merge<'_>, Limits),
    split_point: &Found,
    least: &[u64],
) -> Result<Vec<u64>> {
    let bound = |(file, input): (usize, &Input)| {
        let probe = Probe::new(input, file, merge, limits)?;
        let (mut low, mut high) = (least[file], input.metadata.len);
        // In the split point's own file the answer is known, and the next record is checked. In an unsorted file the
        // split point can lie before the previous one; the merge of the earlier share then detects the disorder.
        if file == split_point.file {
            low = low.max(split_point.to);
            high = low;
        }
        while low < high {
            let middle = low.midpoint(high);
            match probe.at(middle)?.filter(|found| found.from < high) {
                Some(found) if compare(merge.key, &found, split_point).is_le() => low = found.to,
                _ => high = middle,
            }
        }
        let Some(next) = probe.at(low)? else { return Ok(input.metadata.len) };
        if compare(merge.key, &next, split_point).is_le() {
            let piece = Piece::Bytes { file: input.file()?, from: next.from, to: next.to };
            let record = records_before(&piece, merge.layout)?;
            return Err(Error::Unordered { path: input.path().to_path_buf(), record });
        }
        Ok(next.from)
    };
    files.iter().enumerate().map(bound).collect()
}

/// Finds records in a file.
struct Probe {
    file: InputFile,
    number: usize,
    len: u64,
    layout: Layout,
    line_max: u64,
}

impl Probe {
    fn new(input: &Input, number: usize, merge: &Merge<'_>, limits: Limits) -> Result<Probe> {
        let (layout, line_max) = (merge.layout, limits.line_bytes);
        Ok(Probe { file: input.file()?, number, len: input.metadata.len, layout, line_max })
    }

    /// The first record that begins at byte `at` or later.
    fn at(&self, at: u64) -> Result<Option<Found>> {
        let from = match self.layout.fixed_bytes() {
            Some(n) => at.next_multiple_of(n as u64),
            None if at == 0 => 0,
            // A line begins at `at` if the byte before it is a newline.
            None => self.line_end(at - 1)? + 1,
        };
        if from >= self.len {
            return Ok(None);
        }
        let record = match self.layout.fixed_bytes() {
            Some(n) => self.read(from, n)?,
            None => self.line(from)?,
        };
        if self.layout.fixed_bytes().is_some_and(|n| record.len() < n) {
            return Err(changed(&self.file));
        }
        let to = from + (record.len() + self.layout.end_bytes()) as u64;
        Ok(Some(Found { record, file: self.number, from, to }))
    }

    /// Reads the line that begins at `from`.
    fn line(&self, from: u64) -> Result<Vec<u8>> {
        let mut line = self.read(from, LOOK_BYTES)?;
        let end = match memchr::memchr(b'\n', &line) {
            Some(end) => end,
            None if line.len() < LOOK_BYTES => line.len(),
            // Read it again when its length is known, so that the buffer is no larger than the line.
            None => {
                let end = (self.line_end(from)? - from) as usize;
                line = self.read(from, end)?;
                end
            }
        };
        line.truncate(end);
        Ok(line)
    }

    /// The end of the line that contains byte `from`: its newline, or the end of the file.
    fn line_end(&self, from: u64) -> Result<u64> {
        let mut at = from;
        let mut bytes = LOOK_BYTES;
        loop {
            let piece = self.read(at, bytes)?;
            if let Some(end) = memchr::memchr(b'\n', &piece) {
                return Ok(at + end as u64);
            }
            at += piece.len() as u64;
            if piece.len() < bytes {
                return Ok(at);
            }
            if at - from > self.line_max {
                let what = crate::Broken::TooLong { what: self.layout.noun(), limit: self.line_max };
                return Err(Error::Broken { path: self.file.path().to_path_buf(), what });
            }
            bytes = LOOK_ON_BYTES;
        }
    }

    fn read(&self, from: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        let n = self.file.read_at(from, &mut read)?;
        read.truncate(n);
        Ok(read)
    }
}

/// The number of records of the file before the part.
pub(crate) fn records_before(piece: &Piece, layout: Layout) -> Result<u64> {
    let Piece::Bytes { file, from, .. } = piece else { return Ok(0) };
    records_until(file, *from, layout)
}

/// The number of records of a file that begin before byte `from`, where a record begins.
pub fn records_until(file: &InputFile, from: u64, layout: Layout) -> Result<u64> {
    if let Some(n) = layout.fixed_bytes() {
        return Ok(from / n as u64);
    }
    let (mut at, mut records, mut walk) = (0, 0, Walk::new(layout));
    let mut bytes = vec![0; COUNT_BYTES];
    while at < from {
        let n = file.read_at(at, &mut bytes)?.min((from - at) as usize);
        if n == 0 {
            break;
        }
        records += walk.count(&bytes[..n]);
        at += n as u64;
    }
    Ok(records)
}
