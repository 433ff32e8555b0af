//! The buckets of a server that ends and that no other server takes: in files, until it starts again.
//!
//! ```text
//! [xxh3 of the rest: u64][dump]      one file for about 4 MiB of records, written as a whole
//! ```
//!
//! Model: each file is a bucket of its own, with interval, epoch, records and journal. When the server returns, those
//! of one bucket are merged again.
//! Invariant: a dump becomes a bucket at most once, since its file is removed first, and only if no other server has
//! had its keys since. If the last piece of a transfer was not acknowledged, its receiver must say that it does not
//! have the keys.
//! Non-goals: durability of tables in use. Buckets with parity; see parity/dump.rs.

use std::path::{Path, PathBuf};

use thalweg_base::codec::{Plain, decode, record};
use thalweg_io::small;
use xxhash_rust::xxh3::xxh3_64;

use super::image::{Address, Element};
use super::interval::{Bytes, Interval, Upper};
use super::journal::Noted;
use super::message::{Spec, TableId};
use super::owned::Owned;
use super::server::BucketServer;
use crate::bucket::Bucket;
use crate::slab::{Full, Slab};

/// The bytes of keys and values of a file, beyond one record.
const FILE_BYTES: usize = 4 << 20;
pub(crate) const ENDING: &str = ".bucket";
const SUM_BYTES: usize = 8;

/// A part of a bucket, in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) spec: Spec,
    pub(crate) interval: Interval,
    pub(crate) epoch: u64,
    /// The server that got the keys, if it is not known whether it has them.
    pub(crate) receiver: Option<Address>,
    is_pinned: bool,
    /// Whether the bucket continues in the dump before.
    is_to_merge: bool,
    journal: Vec<Noted>,
    /// The location of other buckets.
    image: Vec<Element>,
    records: Vec<(Bytes, Bytes)>,
}

record!(Dump { spec, interval, epoch, receiver, is_pinned, is_to_merge, journal, image, records });

/// What the other servers say about the keys of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nobody else has had the keys since: the dump is current.
    Current,
    /// Another server has, or had, them at a later epoch.
    Stale,
    /// The server that may have them has not answered.
    Unknown,
}

impl Dump {
    /// Judges the dump by what servers have: for each that answered, its intervals with their epochs.
    pub(crate) fn judge(&self, others: &[(Address, Vec<(Interval, u64)>)]) -> Verdict {
        let overlaps = |(interval, epoch): &(Interval, u64)| {
            *epoch >= self.epoch && !interval.intersection(&self.interval).is_empty()
        };
        if others.iter().any(|(_, has)| has.iter().any(overlaps)) {
            return Verdict::Stale;
        }
        match &self.receiver {
            Some(receiver) if !others.iter().any(|(other, _)| other == receiver) => Verdict::Unknown,
            _ => Verdict::Current,
        }
    }
}

/// Reads a file. One that is damaged, or of another version, is an error.
pub(crate) fn read<T: Plain>(file: &Path) -> Result<T, String> {
    let bytes = small::read(file).map_err(|why| why.to_string())?;
    let sound =
        bytes.split_first_chunk::<SUM_BYTES>().filter(|(sum, rest)| sum == &&xxh3_64(rest).to_le_bytes());
    let content = sound.and_then(|(_, rest)| decode(rest));
    content.ok_or_else(|| format!("{}: the file is damaged, or of another version", file.display()))
}

/// Writes a file as a whole.
pub(super) fn write(file: &Path, content: &impl Plain) -> Result<(), String> {
    let mut bytes = vec![0; SUM_BYTES];
    content.put(&mut bytes);
    let sum = xxh3_64(&bytes[SUM_BYTES..]);
    bytes[..SUM_BYTES].copy_from_slice(&sum.to_le_bytes());
    let directory = file.parent().map_or(Ok(()), small::make_directory);
    directory.and_then(|()| small::write(file, &bytes)).map_err(|why| why.to_string())
}

/// The files with an ending in a directory, in the order of their names.
pub(crate) fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = small::list(directory).unwrap_or_default();
    files.retain(|file| file.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

impl BucketServer {
    /// Writes all buckets to files in a directory, and serves nothing from now on. Returns the number of files.
    pub(crate) fn dump(&mut self, directory: &Path) -> Result<usize, String> {
        self.is_gone = true;
        let mut files = 0;
        self.dump_seats(FILE_BYTES, |part| {
            files += 1;
            write(&directory.join(part.file_name()), part)
        })?;
        for served in self.tables.values().filter(|served| served.spec.parity.is_none()) {
            for bucket in &served.buckets {
                let parts = bucket.leaving.iter().filter_map(|leaving| leaving.handed_over());
                let own = (bucket.served(), bucket.epoch, None);
                let parts = parts.map(|(part, to)| (part.clone(), bucket.epoch, Some(to.clone())));
                for (interval, epoch, receiver) in [own].into_iter().chain(parts) {
                    let mut rest = Some(interval).filter(|interval| !interval.is_empty());
                    let mut is_first = true;
                    while let Some(interval) = rest {
                        let (records, behind) = part(&bucket.tree, &self.slab, &interval);
                        let (here, then) = match behind {
                            Some(key) => (
                                Interval::of(&interval.from, Upper::Key(key.clone())),
                                Some(Interval { from: key, to: interval.to }),
                            ),
                            None => (interval, None),
                        };
                        let dump = Dump {
                            spec: served.spec,
                            interval: here,
                            epoch,
                            receiver: receiver.clone(),
                            is_pinned: bucket.is_pinned && is_first,
                            is_to_merge: !is_first,
                            journal: bucket.journal.copy(),
                            image: served.image.within(&Interval::all()).cloned().collect(),
                            records,
                        };
                        let name = format!("{:016x}-{files:06}{ENDING}", served.spec.id);
                        write(&directory.join(name), &dump)?;
                        files += 1;
                        (rest, is_first) = (then, false);
                    }
                }
            }
        }
        Ok(files)
    }

    /// Makes a bucket of a current dump, after `remove` has removed its file.
    pub(crate) fn returns(
        &mut self,
        now_ms: u64,
        dump: Dump,
        remove: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let is_full = || {
            format!(
                "the memory for tables on {} is full; give the node more memory, and start it again",
                self.me
            )
        };
        let free = self.slab.limit().saturating_sub(self.slab.used() + self.reserved);
        if free < FILE_BYTES {
            return Err(is_full());
        }
        let (tree, bytes) = tree(&mut self.slab, &dump.records).map_err(|Full| is_full())?;
        if let Err(why) = remove() {
            tree.clear(&mut self.slab);
            return Err(why);
        }
        // Above the epoch at which another server was asked to take the keys.
        let mut bucket = Owned::of(tree, bytes, dump.interval, dump.epoch + 1);
        (bucket.is_pinned, bucket.is_to_merge, bucket.since_ms) = (dump.is_pinned, dump.is_to_merge, now_ms);
        bucket.journal.add(now_ms, dump.journal);
        self.adopt(dump.spec, bucket, &dump.image);
        self.merge_neighbours(now_ms);
        Ok(())
    }

    /// Whether this server has some of these keys.
    pub(crate) fn has_some(&self, table: TableId, interval: &Interval) -> bool {
        let buckets = self.tables.get(&table).into_iter().flat_map(|served| &served.buckets);
        buckets.map(Owned::served).any(|served| !served.intersection(interval).is_empty())
    }
}

/// The first records of an interval, for a file, and the key of the next one, if there are more.
fn part(tree: &Bucket, slab: &Slab, interval: &Interval) -> (Vec<(Bytes, Bytes)>, Option<Bytes>) {
    let mut records = Vec::new();
    let mut bytes = 0;
    let mut place = tree.seek(slab, &interval.from, false);
    while let Some(record) = tree.next(slab, &mut place).filter(|record| interval.to.is_above(record.key)) {
        if bytes >= FILE_BYTES {
            return (records, Some(record.key.into()));
        }
        bytes += record.key.len() + record.value.len();
        records.push((record.key.into(), record.value.into()));
    }
    (records, None)
}

fn tree(slab: &mut Slab, records: &[(Bytes, Bytes)]) -> Result<(Bucket, u64), Full> {
    let mut tree = Bucket::new(slab)?;
    for (key, value) in records {
        if let Err(full) = tree.put(slab, key, value, None) {
            tree.clear(slab);
            return Err(full);
        }
    }
    Ok((tree, records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()))
}

#[cfg(test)]
mod tests {
    use super::super::message::{Message, Requests};
    use super::super::server::Outbox;
    use super::*;

    const SPEC: Spec = Spec { id: 7, capacity: 1_000_000, capacity_bytes: 1 << 30, parity: None };

    fn dump(from: &str, to: &str, epoch: u64) -> Dump {
        Dump {
            spec: SPEC,
            interval: Interval::new(from.as_bytes(), Some(to.as_bytes())),
            epoch,
            receiver: None,
            is_pinned: false,
            is_to_merge: false,
            journal: Vec::new(),
            image: Vec::new(),
            records: Vec::new(),
        }
    }

    #[test]
    fn a_dump_is_current_unless_another_has_had_its_keys_since() {
        let has = |interval: (&str, &str), epoch| {
            vec![(
                "n2".into(),
                vec![(Interval::new(interval.0.as_bytes(), Some(interval.1.as_bytes())), epoch)],
            )]
        };
        let at_five = dump("c", "f", 5);
        assert_eq!(at_five.judge(&[]), Verdict::Current);
        assert_eq!(at_five.judge(&has(("a", "c"), 9)), Verdict::Current);
        assert_eq!(at_five.judge(&has(("a", "d"), 4)), Verdict::Current);
        assert_eq!(at_five.judge(&has(("a", "d"), 5)), Verdict::Stale);
        let uncertain = |receiver: &str| Dump { receiver: Some(receiver.into()), ..dump("c", "f", 5) };
        assert_eq!(uncertain("n3").judge(&has(("x", "y"), 9)), Verdict::Unknown);
        assert_eq!(uncertain("n2").judge(&has(("x", "y"), 9)), Verdict::Current);
        assert_eq!(uncertain("n2").judge(&has(("c", "f"), 5)), Verdict::Stale);
    }

    #[test]
    fn a_server_that_returns_has_its_records_again_once() {
        let place = std::env::temp_dir().join(format!("thalweg-dump-{}", std::process::id()));
        let mut server = BucketServer::new("n1".into(), 1, 64 << 20);
        server.begin(SPEC).unwrap();
        let value: Bytes = vec![b'v'; 10_000].into();
        // More than one file.
        for i in 0..1000u32 {
            let upsert = super::super::message::Operation::Upsert {
                key: i.to_be_bytes().into(),
                value: value.clone(),
            };
            server.tables.get_mut(&SPEC.id).unwrap().buckets[0].apply(&mut server.slab, &upsert).unwrap();
        }
        let files_written = server.dump(&place).unwrap();
        assert!(files_written > 1);
        let requests = Requests {
            table: SPEC.id,
            client: super::super::journal::ClientId { peer: [0; 2], session: 1 },
            path: Vec::new(),
            visited: Vec::new(),
            is_to_all: false,
            descent: Default::default(),
            done_below: 0,
            asks: Vec::new(),
        };
        let mut out = Outbox::new();
        server.take(0, &"".into(), Message::Requests(requests), &mut out);
        assert!(out.is_empty(), "it serves nothing any more");

        let mut again = BucketServer::new("n1".into(), 2, 64 << 20);
        let found = files(&place, ENDING);
        assert_eq!(found.len(), files_written);
        for file in &found {
            let dump = read(file).unwrap();
            again.returns(0, dump, || small::remove(file).map_err(|why| why.to_string())).unwrap();
        }
        let buckets = &again.tables[&SPEC.id].buckets;
        assert_eq!((buckets.len(), buckets[0].interval.clone(), buckets[0].epoch), (1, Interval::all(), 2));
        assert_eq!((buckets[0].tree.len(), buckets[0].bytes), (1000, 1000 * 10_004));
        assert!(files(&place, ENDING).is_empty());

        write(&found[0], &dump("a", "b", 1)).unwrap();
        let mut bytes = small::read(&found[0]).unwrap();
        bytes[20] ^= 1;
        small::write(&found[0], &bytes).unwrap();
        assert!(read::<Dump>(&found[0]).unwrap_err().contains("damaged"));
        small::remove(&found[0]).unwrap();
        small::remove_directory(&place).unwrap();
    }
}
