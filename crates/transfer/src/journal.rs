//! The journal: which parts of a transfer's files are durable at the destination, so that a later run can resume.
//!
//! ```text
//! thalweg journal 3
//! 6c1e2b... job 0f3a...                        the transfer that the journal belongs to
//! 0d62f7... tree 78 1763... .data.thalweg-partial     a directory that was created under this hidden name
//! 91d04f... file 0 1000000000 1763... 1763... 2049 77 data/big     a source file, as it was
//! 3be7aa... range 0 0 67108864 5d3e...         bytes of it that are durable in the partial file, with their checksum
//! ```
//!
//! Invariant: a line is appended only when what it describes is durable. The first torn or damaged line ends the
//! journal; the lines before it stay valid. Checksums are additive, so nothing that is listed is read again.
//! `docs/formats/journal.md` describes every byte.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use thalweg_base::escape::{escaped, unescaped};
use thalweg_io::File;
use thalweg_io::tree::{Attributes, Dir, Tree};
use thalweg_record::CELL_BYTES;
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;
use crate::claim::{claim_left, claim_new};

const MAGIC: &[u8; 18] = b"thalweg journal 3\n";
/// A larger file is not one of our journals.
const BYTES_MAX: u64 = 1 << 30;
/// The longest line: in a name of the deepest tree each byte may be escaped as three.
const LINE_BYTES_MAX: usize = 4 << 20;
/// The size of a read.
const READ_BYTES: usize = 64 << 10;
/// The most memory for the contents: ranges of 20 TB and more, if each has the 64 MB that are listed together.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// The memory of a file or a tree, and of a range, without names.
const FILE_BYTES: u64 = 256;
const RANGE_BYTES: u64 = 64;

/// Ranges of a file, by offset: length and checksum.
pub(crate) type Ranges = BTreeMap<u64, (u64, u128)>;

/// The entries of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Its number in the journal.
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) ranges: Ranges,
}

impl ListedFile {
    fn of(facts: &Attributes) -> ListedFile {
        let Attributes { len, modified_ns, changed_ns, device, inode, .. } = *facts;
        ListedFile { number: 0, len, modified_ns, changed_ns, device, inode, ranges: Ranges::new() }
    }

    /// Whether the file is unchanged. Its length and modification time can be restored after a change, but its change
    /// time cannot. A new or removed hard link also counts as a change; the data is then moved again.
    pub(crate) fn is_of(&self, facts: &Attributes) -> bool {
        let told = |n: &ListedFile| (n.len, n.modified_ns, n.changed_ns, n.device, n.inode);
        told(self) == told(&ListedFile::of(facts))
    }

    /// Adds a range if it is inside the file and does not overlap others.
    fn add(&mut self, at: u64, len: u64, sum: u128) -> Option<()> {
        let end = at.checked_add(len).filter(|end| *end <= self.len && len > 0)?;
        let before = self.ranges.range(..end).next_back();
        let apart = before.is_none_or(|(from, (bytes, _))| from + bytes <= at);
        if !apart || !at.is_multiple_of(CELL_BYTES as u64) {
            return None;
        }
        self.ranges.insert(at, (len, sum));
        Some(())
    }
}

/// A directory that was created under a hidden name. Its device is not listed, because it is that of its parent, and
/// device numbers may change at a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MadeTree {
    inode: u64,
    /// The time of its creation; 0 where the file system does not record it.
    born_ns: i128,
    name: Vec<u8>,
}

impl MadeTree {
    /// The open directory, with that name.
    pub(crate) fn of(name: &OsStr, tree: &dyn Dir) -> Result<MadeTree> {
        let (inode, born_ns) = (tree.attributes()?.inode, tree.created_ns());
        Ok(MadeTree { inode, born_ns, name: name.as_bytes().to_vec() })
    }

    /// Whether it is one of `trees`.
    pub(crate) fn is_in(&self, trees: &[MadeTree]) -> bool {
        let is_it = |other: &MadeTree| {
            let born = self.born_ns == other.born_ns || self.born_ns == 0 || other.born_ns == 0;
            born && (self.inode, &self.name) == (other.inode, &other.name)
        };
        trees.iter().any(is_it)
    }
}

/// The contents of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalContents {
    pub(crate) identity: Option<u128>,
    /// The trees of all jobs.
    pub(crate) trees: Vec<MadeTree>,
    /// The files by key, their place in the transfer.
    pub(crate) files: HashMap<Vec<u8>, ListedFile>,
    /// The number of lines that describe files.
    pub(crate) count: u64,
    /// The length of the valid part.
    pub(crate) end: usize,
}

/// Reads the valid part of any bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn parse(bytes: &[u8]) -> JournalContents {
    let read = |at: u64, into: &mut [u8]| {
        let some = &bytes[at as usize..];
        let some = &some[..some.len().min(into.len())];
        into[..some.len()].copy_from_slice(some);
        Ok(some.len())
    };
    read_lines(read, |_| true).expect("it is in memory")
}

/// Reads the valid part line by line, with a function that reads at an offset. For a job other than the wanted one, it
/// keeps only the trees.
fn read_lines(
    read: impl Fn(u64, &mut [u8]) -> Result<usize>,
    is_wanted: impl Fn(u128) -> bool,
) -> Result<JournalContents> {
    let mut lines = Lines { told: JournalContents::default(), keys: Vec::new(), kept_bytes: 0, is_wanted };
    let (mut held, mut at) = (Vec::new(), 0);
    loop {
        let before = held.len();
        held.resize(before + READ_BYTES, 0);
        let some = read(at, &mut held[before..])?;
        held.truncate(before + some);
        at += some as u64;
        let mut taken = 0;
        while let Some(len) = held[taken..].iter().position(|b| *b == b'\n') {
            if lines.take(&held[taken..taken + len]).is_none() {
                return Ok(lines.told());
            }
            taken += len + 1;
        }
        held.drain(..taken);
        if some == 0 || held.len() > LINE_BYTES_MAX {
            return Ok(lines.told());
        }
    }
}

/// The contents of the lines so far.
struct Lines<W> {
    told: JournalContents,
    /// The files, by their numbers.
    keys: Vec<Vec<u8>>,
    /// The part of [`KEPT_BYTES_MAX`] that is in use.
    kept_bytes: u64,
    is_wanted: W,
}

impl<W: Fn(u128) -> bool> Lines<W> {
    fn told(mut self) -> JournalContents {
        self.told.count = self.keys.len() as u64;
        self.told
    }

    /// Adds a line, without its newline; an invalid line ends the valid part.
    fn take(&mut self, line: &[u8]) -> Option<()> {
        if self.told.end == 0 {
            (line == &MAGIC[..MAGIC.len() - 1]).then_some(())?;
        } else {
            self.take_said(said(text_of(line)?)?)?;
        }
        self.told.end += line.len() + 1;
        Some(())
    }

    fn take_said(&mut self, said: Said) -> Option<()> {
        let Lines { told, keys, kept_bytes, is_wanted } = self;
        if told.identity.is_some_and(|job| !is_wanted(job)) && !matches!(said, Said::Tree(_)) {
            return Some(());
        }
        *kept_bytes += match &said {
            Said::Job(_) => 0,
            Said::Tree(tree) => FILE_BYTES + tree.name.len() as u64,
            Said::File(_, key) => FILE_BYTES + 2 * key.len() as u64,
            Said::Range(..) => RANGE_BYTES,
        };
        match said {
            _ if *kept_bytes > KEPT_BYTES_MAX => return None,
            Said::Job(identity) if told.identity.is_none() => told.identity = Some(identity),
            Said::Tree(tree) if told.identity.is_some() => told.trees.push(tree),
            Said::File(noted, key) if told.identity.is_some() && noted.number == keys.len() as u64 => {
                // A file that starts over is listed again; the last entry counts.
                told.files.insert(key.clone(), noted);
                keys.push(key);
            }
            Said::Range(number, at, len, sum) => {
                told.files.get_mut(keys.get(number)?)?.add(at, len, sum)?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// The contents of one line.
enum Said {
    Job(u128),
    Tree(MadeTree),
    File(ListedFile, Vec<u8>),
    Range(usize, u64, u64, u128),
}

/// Parses a line whose hash is correct.
fn text_of(line: &[u8]) -> Option<&str> {
    let (hash, text) = (line.get(..16)?, line.get(17..)?);
    let fits = line[16] == b' ' && hash == format!("{:016x}", xxh3_64(text)).as_bytes();
    fits.then(|| std::str::from_utf8(text).ok())?
}

fn said(text: &str) -> Option<Said> {
    let mut words = text.split(' ');
    let mut word = || words.next();
    let said = match word()? {
        "job" => Said::Job(u128::from_str_radix(word()?, 16).ok()?),
        "tree" => Said::Tree(MadeTree {
            inode: word()?.parse().ok()?,
            born_ns: word()?.parse().ok()?,
            name: unescaped(word()?)?,
        }),
        "file" => {
            let noted = ListedFile {
                number: word()?.parse().ok()?,
                len: word()?.parse().ok()?,
                modified_ns: word()?.parse().ok()?,
                changed_ns: word()?.parse().ok()?,
                device: word()?.parse().ok()?,
                inode: word()?.parse().ok()?,
                ranges: Ranges::new(),
            };
            Said::File(noted, unescaped(word()?)?)
        }
        "range" => Said::Range(
            word()?.parse().ok()?,
            word()?.parse().ok()?,
            word()?.parse().ok()?,
            u128::from_str_radix(word()?, 16).ok()?,
        ),
        _ => return None,
    };
    words.next().is_none().then_some(said)
}

/// A line with its hash.
pub(crate) fn line(said: &str) -> String {
    format!("{:016x} {said}\n", xxh3_64(said.as_bytes()))
}

/// Reads a journal. Another file of any size may be in its place.
fn read(file: &File, wanted: Option<u128>) -> Result<JournalContents> {
    match file.metadata()?.len < BYTES_MAX {
        true => read_lines(|at, into| Ok(file.read_at(at, into)?), |job| Some(job) == wanted),
        false => Ok(JournalContents::default()),
    }
}

/// Reads the valid entries for this job from the journal of that name, if one of this user exists.
pub(crate) fn told_by(dir: &dyn Dir, name: &OsStr, wanted: Option<u128>) -> JournalContents {
    let left = dir.reopen_file(name, false, None);
    left.ok().and_then(|file| read(&file, wanted).ok()).unwrap_or_default()
}

/// A journal that is being written. Its lock shows that its transfer runs.
pub(crate) struct Journal {
    file: File,
    dir: Arc<dyn Dir>,
    name: OsString,
    written: Mutex<Written>,
}

struct Written {
    end: u64,
    trees: Vec<MadeTree>,
    /// The number of lines that describe files.
    count: u64,
    /// Whether there are lines that describe ranges.
    ranges: bool,
}

impl Journal {
    /// Opens the journal of that name, or creates it, and returns its valid entries for this job if they are wanted. An
    /// error if another running process has it.
    pub(crate) fn open(
        tree: &dyn Tree,
        dir: &Arc<dyn Dir>,
        name: OsString,
        wanted: Option<u128>,
    ) -> Result<(Journal, JournalContents)> {
        let file = match claim_left(tree, &**dir, &name, false)? {
            Some(left) => left,
            None => claim_new(tree, &**dir, &name, false, None)?,
        };
        let (len, told) = (file.metadata()?.len, read(&file, wanted)?);
        let journal = Journal {
            file,
            dir: Arc::clone(dir),
            name,
            written: Mutex::new(Written {
                end: told.end as u64,
                trees: told.trees.clone(),
                count: told.count,
                ranges: told.count > 0,
            }),
        };
        if told.identity.is_some() && told.identity == wanted {
            journal.file.set_len(told.end as u64)?;
            return Ok((journal, told));
        }
        Ok((journal, JournalContents { end: len as usize, ..JournalContents::default() }))
    }

    /// The trees that it lists.
    pub(crate) fn trees(&self) -> Vec<MadeTree> {
        self.written.lock().expect("no lane panics").trees.clone()
    }

    /// Lists a tree durably, so that its contents can be used after a power loss too.
    pub(crate) fn list_tree(&self, tree: MadeTree) -> Result<()> {
        let mut written = self.written.lock().expect("no lane panics");
        let MadeTree { inode, born_ns, name } = &tree;
        self.append(&mut written, &line(&format!("tree {inode} {born_ns} {}", escaped(name))))?;
        written.trees.push(tree);
        Ok(self.file.sync()?)
    }

    /// Empties the journal.
    pub(crate) fn begin(&self, identity: u128) -> Result<()> {
        let head = [MAGIC, line(&format!("job {identity:032x}")).as_bytes()].concat();
        let mut written = self.written.lock().expect("no lane panics");
        self.file.set_len(0)?;
        self.file.write_at(0, &head)?;
        *written = Written { end: head.len() as u64, trees: Vec::new(), count: 0, ranges: false };
        Ok(())
    }

    /// Lists a file; returns its number, which lines of ranges refer to.
    pub(crate) fn list(&self, key: &[u8], facts: &Attributes) -> Result<u64> {
        let ListedFile { len, modified_ns, changed_ns, device, inode, .. } = ListedFile::of(facts);
        let mut written = self.written.lock().expect("no lane panics");
        let number = written.count;
        let key = escaped(key);
        let said = format!("file {number} {len} {modified_ns} {changed_ns} {device} {inode} {key}");
        self.append(&mut written, &line(&said))?;
        written.count += 1;
        Ok(number)
    }

    /// Lists ranges of a file that are durable.
    pub(crate) fn note(&self, number: u64, ranges: &Ranges) -> Result<()> {
        let mut lines = String::new();
        for (at, (len, sum)) in ranges {
            lines += &line(&format!("range {number} {at} {len} {sum:032x}"));
        }
        let mut written = self.written.lock().expect("no lane panics");
        written.ranges = true;
        self.append(&mut written, &lines)
    }

    /// Whether a later run could resume from some range.
    pub(crate) fn has_ranges(&self) -> bool {
        self.written.lock().expect("no lane panics").ranges
    }

    fn append(&self, written: &mut Written, lines: &str) -> Result<()> {
        self.file.write_at(written.end, lines.as_bytes())?;
        written.end += lines.len() as u64;
        Ok(())
    }

    /// Removes the journal.
    pub(crate) fn remove(&self) -> thalweg_io::Result<()> {
        self.dir.remove(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> String {
        let mut text = String::from_utf8(MAGIC.to_vec()).unwrap();
        text += &line("job 000000000000000000000000000000ab");
        text += &line("file 0 100000 -5 6 1 2 a%20b%0a/c");
        text += &line("range 0 0 4096 00000000000000000000000000000001");
        text += &line("range 0 8192 91808 00000000000000000000000000000002");
        text
    }

    #[test]
    fn what_is_listed_is_told() {
        let text = sample();
        let told = parse(text.as_bytes());
        assert_eq!((told.identity, told.count, told.end), (Some(0xab), 1, text.len()));
        let noted = &told.files[b"a b\n/c".as_slice()];
        assert_eq!((noted.len, noted.modified_ns, noted.changed_ns), (100_000, -5, 6));
        assert_eq!((noted.device, noted.inode), (1, 2));
        let ranges: Vec<_> = noted.ranges.iter().map(|(at, (len, sum))| (*at, *len, *sum)).collect();
        assert_eq!(ranges, [(0, 4096, 1), (8192, 91808, 2)]);
    }

    #[test]
    fn a_tree_is_listed_by_its_number_its_birth_and_its_name() {
        let tree = |inode, born_ns, name: &str| MadeTree { inode, born_ns, name: name.into() };
        let told = parse((sample() + &line("tree 7 5 .a.thalweg-partial")).as_bytes());
        assert_eq!(told.trees, [tree(7, 5, ".a.thalweg-partial")]);
        for (other, is_it) in [
            (tree(7, 5, ".a.thalweg-partial"), true),
            // A file system does not record the time of creation, or did not then.
            (tree(7, 0, ".a.thalweg-partial"), true),
            (tree(8, 5, ".a.thalweg-partial"), false),
            (tree(7, 6, ".a.thalweg-partial"), false),
            (tree(7, 5, ".b.thalweg-partial"), false),
        ] {
            assert_eq!(other.is_in(&told.trees), is_it, "{other:?}");
        }
    }

    #[test]
    fn the_first_line_that_is_not_sound_ends_it() {
        let sound = sample();
        for bad in [
            line("range 0 4096 8192 00000000000000000000000000000003"), // overlaps the next range
            line("range 0 0 4096 00000000000000000000000000000001"),    // a second time
            line("range 0 4096 0 00000000000000000000000000000000"),
            line("range 0 4097 4 00000000000000000000000000000000"),
            line("range 1 4096 4096 00000000000000000000000000000000"),
            line("range 0 4096 18446744073709551615 00000000000000000000000000000000"),
            line("file 7 1 1 1 1 1 x"),
            line("file 1 1 1 1 1 1 x y"),
            line("file 1 1 1 1 1 x"),
            line("job 000000000000000000000000000000ab"),
            line("nonsense 1"),
            sample().lines().nth(2).unwrap().replace("100000", "100001") + "\n",
            "torn".into(),
            String::new(),
        ] {
            let told = parse(format!("{sound}{bad}{}", line("file 1 1 1 1 1 1 x")).as_bytes());
            let expected = if bad.is_empty() { 2 } else { 1 };
            assert_eq!(told.count, expected, "{bad}");
            assert_eq!(told.files[b"a b\n/c".as_slice()].ranges.len(), 2, "{bad}");
        }
        assert_eq!(parse(b"something else\n"), JournalContents::default());
        let old = sound.replace("thalweg journal 3", "thalweg journal 2");
        assert_eq!(parse(old.as_bytes()), JournalContents::default(), "it does not say which trees it made");
    }

    proptest! {
        #[test]
        fn a_journal_cut_anywhere_tells_a_part_of_the_whole(cut in 0usize..400) {
            let text = sample();
            let told = parse(&text.as_bytes()[..cut.min(text.len())]);
            prop_assert!(told.end <= cut);
            let whole = parse(text.as_bytes());
            for (key, noted) in &told.files {
                prop_assert!(noted.ranges.iter().all(|r| whole.files[key].ranges.get(r.0) == Some(r.1)));
            }
        }
    }
}
