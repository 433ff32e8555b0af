//! Parting sorted files by key, so that several lanes merge at once.
//!
//! Model: a sample of records, with their origins, gives cuts of about equal depth. In every file, a search by halves
//! finds the byte at which the records behind a cut begin. Because a cut has an origin, one key that fills all files is
//! parted too, and what lanes merge apart is, in a row, what one lane would merge.
//! Law: records that meet at such a byte were both looked at, so files that are out of order there are noticed.
//! Non-goals: files that are not in order; wherever else they are not, whoever merges notices.

use std::cmp::Ordering;

use thalweg_io::File;
use thalweg_pump::{Input, Inputs, InputsError};
use thalweg_record::{Key, Layout};

use crate::{Error, Merge, Piece, Result};

/// Records of a sample for each lane; their number is what cuts err by.
const SAMPLES_PER_LANE: u64 = 64;
/// Bytes of the first read that looks for a line.
const LOOK_BYTES: usize = 4 << 10;
/// Bytes of reads that count lines.
const COUNT_BYTES: usize = 1 << 20;

/// A sampled record: its file and its first byte there, and the byte behind it.
#[derive(Debug, Clone)]
struct Sampled {
    record: Vec<u8>,
    file: usize,
    from: u64,
    to: u64,
}

/// What one lane is to merge.
#[derive(Debug, Clone)]
pub struct Share {
    /// A piece of every file.
    pub pieces: Vec<Piece>,
    /// Where its stretch of the output begins.
    pub at: u64,
}

/// Parts files into shares for so many lanes.
pub fn split(inputs: &Inputs, merge: &Merge<'_>, lanes: usize) -> Result<Vec<Share>> {
    let files = inputs.files();
    let mut from = vec![0; files.len()];
    let mut shares = Vec::with_capacity(lanes);
    let mut at = 0;
    let sample = if lanes > 1 { sample(inputs, merge, SAMPLES_PER_LANE * lanes as u64)? } else { Vec::new() };
    for lane in 1..=lanes {
        let to = match sample.get(lane * sample.len() / lanes) {
            Some(cut) if lane < lanes => bounds(files, merge, cut, &from)?,
            _ => files.iter().map(|input| input.metadata.len).collect(),
        };
        let piece =
            |(i, input): (usize, &Input)| Ok(Piece::Bytes { file: input.file()?, from: from[i], to: to[i] });
        let pieces = files.iter().enumerate().map(piece).collect::<Result<_>>()?;
        shares.push(Share { pieces, at });
        // A newline that a file lacks is written.
        let added = |i: usize| from[i] < to[i] && to[i] == files[i].metadata.len && files[i].lacks_newline;
        at += (0..files.len()).map(|i| to[i] - from[i] + u64::from(added(i))).sum::<u64>();
        from = to;
    }
    Ok(shares)
}

/// Records at equal distances in all files together, in order of (key, origin).
fn sample(inputs: &Inputs, merge: &Merge<'_>, count: u64) -> Result<Vec<Sampled>> {
    let mut sampled = Vec::with_capacity(count as usize);
    let total: u64 = inputs.file_bytes();
    for i in 0..count {
        let mut at = (u128::from(total) * u128::from(2 * i + 1) / u128::from(2 * count)) as u64;
        for (file, input) in inputs.files().iter().enumerate() {
            if at < input.metadata.len {
                sampled.extend(Probe::new(input, file, merge)?.at(at)?);
                break;
            }
            at -= input.metadata.len;
        }
    }
    sampled.sort_by(|a, b| compare(merge.key, a, b));
    Ok(sampled)
}

fn compare(key: &Key, a: &Sampled, b: &Sampled) -> Ordering {
    key.compare(&a.record, &b.record).then((a.file, a.from).cmp(&(b.file, b.from)))
}

/// The first byte of every file that is behind the cut, none before `least`.
fn bounds(files: &[Input], merge: &Merge<'_>, cut: &Sampled, least: &[u64]) -> Result<Vec<u64>> {
    let bound = |(file, input): (usize, &Input)| {
        let mut probe = Probe::new(input, file, merge)?;
        let (mut low, mut high) = (least[file], input.metadata.len);
        // Of the cut's own file the answer is known, and what is behind it is looked at.
        if file == cut.file {
            (low, high) = (cut.to, cut.to);
        }
        while low < high {
            let middle = low.midpoint(high);
            match probe.at(middle)?.filter(|found| found.from < high) {
                Some(found) if compare(merge.key, &found, cut).is_le() => low = found.to,
                _ => high = middle,
            }
        }
        let Some(next) = probe.at(low)? else { return Ok(input.metadata.len) };
        if compare(merge.key, &next, cut).is_le() {
            let piece = Piece::Bytes { file: input.file()?, from: next.from, to: next.to };
            let record = records_before(&piece, merge.layout)?;
            return Err(Error::Unordered { path: input.path().to_path_buf(), record });
        }
        Ok(next.from)
    };
    files.iter().enumerate().map(bound).collect()
}

/// Looks for records in a file.
struct Probe {
    file: File,
    number: usize,
    len: u64,
    layout: Layout,
    line_max: u64,
}

impl Probe {
    fn new(input: &Input, number: usize, merge: &Merge<'_>) -> Result<Probe> {
        let (layout, line_max) = (merge.layout, merge.line_max);
        Ok(Probe { file: input.file()?, number, len: input.metadata.len, layout, line_max })
    }

    /// The first record that begins at byte `at` or behind it.
    fn at(&mut self, at: u64) -> Result<Option<Sampled>> {
        match self.layout {
            Layout::Fixed(n) => {
                let from = at.next_multiple_of(u64::from(n));
                if from >= self.len {
                    return Ok(None);
                }
                let record = self.read(from, n as usize)?;
                if record.len() < n as usize {
                    return Err(InputsError::Changed(self.file.path().display().to_string()).into());
                }
                Ok(Some(Sampled { record, file: self.number, from, to: from + u64::from(n) }))
            }
            Layout::Lines => {
                let from = match at {
                    0 => 0,
                    // A line begins at `at` if the byte before it ends one.
                    _ => at + self.line(at - 1)?.len() as u64,
                };
                if from >= self.len {
                    return Ok(None);
                }
                let record = self.line(from)?;
                let to = from + record.len() as u64 + 1;
                Ok(Some(Sampled { record, file: self.number, from, to }))
            }
        }
    }

    /// The bytes from `from` to the next newline or the end of the file.
    fn line(&mut self, from: u64) -> Result<Vec<u8>> {
        let mut bytes = LOOK_BYTES;
        loop {
            let mut line = self.read(from, bytes)?;
            if let Some(end) = memchr::memchr(b'\n', &line) {
                line.truncate(end);
                return Ok(line);
            }
            if line.len() < bytes {
                return Ok(line);
            }
            if bytes as u64 > self.line_max {
                let what = crate::Broken::TooLong { limit: self.line_max };
                return Err(Error::Broken { path: self.file.path().to_path_buf(), what });
            }
            bytes *= 4;
        }
    }

    fn read(&self, from: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        let n = self.file.read_at(from, &mut read)?;
        read.truncate(n);
        Ok(read)
    }
}

/// How many records of the file are before the piece.
pub(crate) fn records_before(piece: &Piece, layout: Layout) -> Result<u64> {
    let Piece::Bytes { file, from, .. } = piece else { return Ok(0) };
    records_until(file, *from, layout)
}

/// How many records of a file begin before byte `from`, where one begins.
pub fn records_until(file: &File, from: u64, layout: Layout) -> Result<u64> {
    if let Layout::Fixed(n) = layout {
        return Ok(from / u64::from(n));
    }
    let (mut at, mut lines) = (0, 0);
    let mut bytes = vec![0; COUNT_BYTES];
    while at < from {
        let n = file.read_at(at, &mut bytes)?.min((from - at) as usize);
        if n == 0 {
            break;
        }
        lines += memchr::memchr_iter(b'\n', &bytes[..n]).count() as u64;
        at += n as u64;
    }
    Ok(lines)
}
