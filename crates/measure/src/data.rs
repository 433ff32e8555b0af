//! The inputs: the Sort Benchmark's records, and lines like those of real files, all from one seed.
//!
//! Invariant: the same kind and size give the same bytes on every machine. Every line ends in a newline, and the last
//! one may exceed the size that was asked for.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use thalweg_base::rng::Rng;
use thalweg_record::{Generator, Kind, RECORD_BYTES};

use crate::Result;
use crate::{SEED, failed};

/// The contents of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// The benchmark's binary records.
    Binary,
    /// The benchmark's binary records with skewed keys.
    Skewed,
    /// Printable benchmark records: lines of 98 characters that end in CR LF.
    Ascii,
    /// URLs that share their first 30 bytes.
    Urls,
    /// Lines of 8 characters.
    Short,
    /// A million distinct words, repeated.
    Words,
    /// A log whose lines begin with their time, 99 of 100 in order.
    Log,
    /// Lines of 1 to 64 KiB.
    Long,
    /// The user's file with this index among those of the options.
    Own(usize),
}

/// Bytes that are written to the file at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The prefix of all URLs.
const URL_PREFIX: &[u8; 30] = b"https://www.example.org/goods/";
const WORDS: u64 = 1_000_000;
/// One in this many lines of the log is late,
const LATE_ONE_IN: u64 = 100;
/// by at most this many microseconds.
const LATE_US_MAX: u64 = 10_000_000;
const LONG_BYTES_MIN: u64 = 1 << 10;
const LONG_BYTES_MAX: u64 = 64 << 10;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Data {
    /// Name of the file.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase().replace(['(', ')'], "")
    }

    /// Whether records are lines; otherwise they are the Sort Benchmark's.
    pub fn is_lines(self) -> bool {
        !matches!(self, Data::Binary | Data::Skewed)
    }

    /// Creates a file of about `bytes` bytes and returns its exact size.
    pub fn make(self, path: &Path, bytes: u64) -> Result<u64> {
        let mut file = File::create(path).map_err(|e| failed("make", path, &e))?;
        let mut made = 0;
        let mut piece = Vec::with_capacity(PIECE_BYTES + LONG_BYTES_MAX as usize);
        let mut maker = Maker::new(self, bytes);
        while made < bytes {
            piece.clear();
            maker.fill(&mut piece, bytes - made);
            file.write_all(&piece).map_err(|e| failed("write", path, &e))?;
            made += piece.len() as u64;
        }
        file.sync_data().map_err(|e| failed("write", path, &e))?;
        Ok(made)
    }
}

/// Generates lines or records one after the other.
struct Maker {
    data: Data,
    rng: Rng,
    records: Option<Generator>,
    words: u64,
    now_us: u64,
}

impl Maker {
    fn new(data: Data, bytes: u64) -> Maker {
        let kind = match data {
            Data::Binary => Some(Kind::default()),
            Data::Skewed => Some(Kind { skewed: true, ascii: false }),
            Data::Ascii => Some(Kind { ascii: true, skewed: false }),
            _ => None,
        };
        // Each word occurs some dozens of times even if there are few lines.
        let words = (bytes / 500).clamp(1, WORDS);
        Maker {
            data,
            rng: Rng::new(SEED),
            records: kind.map(|kind| Generator::new(kind, 0)),
            words,
            now_us: 0,
        }
    }

    /// Adds whole lines or records until a piece is full, or there are `wanted` bytes.
    fn fill(&mut self, piece: &mut Vec<u8>, wanted: u64) {
        let full = wanted.min(PIECE_BYTES as u64) as usize;
        if let Some(generator) = &mut self.records {
            piece.resize(full.div_ceil(RECORD_BYTES) * RECORD_BYTES, 0);
            return generator.fill(piece);
        }
        while piece.len() < full {
            self.line(piece);
            piece.push(b'\n');
        }
    }

    fn line(&mut self, out: &mut Vec<u8>) {
        match self.data {
            Data::Urls => self.url(out),
            Data::Short => letters(out, self.rng.next_u64(), 8),
            Data::Words => {
                let number = self.rng.below(self.words);
                word(out, number);
            }
            Data::Log => self.log(out),
            Data::Long => {
                let length = LONG_BYTES_MIN + self.rng.below(LONG_BYTES_MAX - LONG_BYTES_MIN + 1);
                self.text(out, length - 1);
            }
            Data::Binary | Data::Skewed | Data::Ascii => unreachable!("records have their own generator"),
            Data::Own(_) => unreachable!("it is there already"),
        }
    }

    fn url(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(URL_PREFIX);
        for _ in 0..=self.rng.below(3) {
            let length = 3 + self.rng.below(14);
            self.text(out, length);
            out.push(b'/');
        }
        let number = self.rng.below(1_000_000_000);
        out.extend_from_slice(format!("?id={number}").as_bytes());
    }

    fn log(&mut self, out: &mut Vec<u8>) {
        self.now_us += 1 + self.rng.below(2000);
        let late = if self.rng.one_in(LATE_ONE_IN) { self.rng.below(LATE_US_MAX) } else { 0 };
        let at = self.now_us.saturating_sub(late);
        let (seconds, us) = (at / 1_000_000, at % 1_000_000);
        let (day, hour, minute, second) =
            (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let level = ["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"][self.rng.below(6) as usize];
        let time = format!(
            "2026-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z host{:02} {level} request ",
            1 + day / 28 % 12, // Months of 28 days keep the order and need no calendar.
            1 + day % 28,
            self.rng.below(40)
        );
        out.extend_from_slice(time.as_bytes());
        let length = 20 + self.rng.below(60);
        self.text(out, length);
    }

    /// Appends this many letters.
    fn text(&mut self, out: &mut Vec<u8>, length: u64) {
        let mut left = length;
        while left > 0 {
            let now = left.min(10);
            letters(out, self.rng.next_u64(), now);
            left -= now;
        }
    }
}

/// Up to ten letters from 64 bits.
fn letters(out: &mut Vec<u8>, bits: u64, count: u64) {
    out.extend((0..count).map(|i| LETTERS[(bits >> (6 * i) & 63) as usize]));
}

/// The word with this number: five letters that identify it, scattered over the alphabet, and up to seven more.
fn word(out: &mut Vec<u8>, number: u64) {
    const ALL: u64 = 26 * 26 * 26 * 26 * 26;
    const STEP: u64 = 7_368_787; // Without a factor in common with ALL, so that no two numbers meet.
    const _: () = assert!(WORDS < ALL && !STEP.is_multiple_of(2) && !STEP.is_multiple_of(13));
    let mut rest = number * STEP % ALL;
    for _ in 0..5 {
        out.push(b'a' + (rest % 26) as u8);
        rest /= 26;
    }
    let mut more = Rng::new(number);
    for _ in 0..more.below(8) {
        out.push(b'a' + more.below(26) as u8);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LINES: [Data; 6] = [Data::Ascii, Data::Urls, Data::Short, Data::Words, Data::Log, Data::Long];

    fn made(data: Data, bytes: u64) -> Vec<u8> {
        let name = format!("thalweg-data-{}-{}-{bytes}", std::process::id(), data.name());
        let path = std::env::temp_dir().join(name);
        let length = data.make(&path, bytes).unwrap();
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(content.len() as u64, length);
        content
    }

    fn lines(content: &[u8]) -> Vec<&[u8]> {
        content.split_inclusive(|&byte| byte == b'\n').collect()
    }

    #[test]
    fn the_same_kind_and_size_are_the_same_bytes_and_about_as_many_as_asked() {
        for data in LINES.into_iter().chain([Data::Binary, Data::Skewed]) {
            let content = made(data, 300_000);
            assert_eq!(content, made(data, 300_000), "{data:?}");
            assert!((300_000..=300_000 + LONG_BYTES_MAX as usize).contains(&content.len()), "{data:?}");
            assert!(!data.is_lines() || content.ends_with(b"\n"), "{data:?}");
        }
        assert_eq!(
            made(Data::Binary, 1000),
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| { Generator::at(Kind::default(), n) }).concat()
        );
    }

    #[test]
    fn each_kind_of_lines_is_what_its_name_says() {
        assert!(lines(&made(Data::Urls, 100_000)).iter().all(|line| line.starts_with(URL_PREFIX)));
        assert!(lines(&made(Data::Short, 100_000)).iter().all(|line| line.len() == 9));
        let long = made(Data::Long, 3_000_000);
        let lengths = lines(&long).iter().map(|line| line.len()).collect::<Vec<_>>();
        assert!(lengths.iter().all(|length| (1 << 10..=64 << 10).contains(length)), "{lengths:?}");
        let log = made(Data::Log, 2_000_000);
        let log = lines(&log);
        let late = log.windows(2).filter(|pair| pair[0] > pair[1]).count() as f64 / log.len() as f64;
        assert!((0.005..0.02).contains(&late), "{late} of the lines come after a later one");
    }

    #[test]
    fn words_are_distinct_and_come_again() {
        let distinct: BTreeSet<Vec<u8>> = (0..100_000)
            .map(|number| {
                let mut bytes = Vec::new();
                word(&mut bytes, number);
                bytes
            })
            .collect();
        assert_eq!(distinct.len(), 100_000);
        let content = made(Data::Words, 1_000_000);
        let met: BTreeSet<&[u8]> = lines(&content).into_iter().collect();
        assert!(met.len() <= 2000 && met.len() > 1900, "{} words", met.len());
    }
}
