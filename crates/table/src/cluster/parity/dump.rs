//! The buckets of groups on a server that ends: in files, until it starts again.
//!
//! ```text
//! [xxh3 of the rest: u64][Part]      one file for about 4 MiB of lines
//! ```
//!
//! Model: the files of a bucket have its whole state, also the changes that are not confirmed. So for its group, a
//! server that returns is like one that was suspended: it is sent the changes that it has missed, or its seat has
//! another occupant.
//! Invariant: a bucket returns at most once, since its files are removed first. It serves only after the registrar has
//! said that its seat was given to nobody else, and which keys it has. Transfers of the earlier run are cancelled.
//! Non-goals: buckets that are being recovered. Whoever has their seats begins again.

use std::collections::BTreeMap;
use std::path::Path;

use thalweg_base::codec::{choice, record};
use thalweg_io::small;

use super::super::dump::{files, read};
use super::super::interval::Bytes;
use super::super::journal::Noted;
use super::super::message::TableId;
use super::super::server::BucketServer;
use super::keeper::{Keeper, Share};
use super::lines::Rank;
use super::message::{Change, GroupId, Seat};
use super::protection::{Protection, Returned, ReturnedBucket};
use super::restore::Recovered;
use super::serve::{Found, members};
use crate::slab::{Full, Slab};

const ENDING: &str = ".seat";

/// The changes of a data bucket, and those of them that are not confirmed.
type Changes = (u64, Vec<Change>);

/// A file: a part of a bucket.
pub(in super::super) struct Part {
    table: TableId,
    seat: Seat,
    number: u32,
    /// In the first part.
    state: Option<State>,
    lines: Vec<(Rank, Bytes)>,
    is_last: bool,
}

/// What a bucket has beside its lines.
enum State {
    Data { changes: u64, unconfirmed: Vec<Change>, noted: Vec<Noted> },
    Parity(Vec<Share>),
}

impl Part {
    /// The name of its file. The files of a bucket follow each other in the order of names.
    pub(in super::super) fn file_name(&self) -> String {
        let Seat { group, index, incarnation } = self.seat;
        format!("{group:016x}-{index:02}-{incarnation:016x}-{:06}{ENDING}", self.number)
    }
}

record!(Part { table, seat, number, state, lines, is_last });
choice!(State {
    0 => Data { changes: changes, unconfirmed: unconfirmed, noted: noted },
    1 => Parity { 0: shares },
});

impl Returned {
    /// A bucket without its lines, and the changes after which it continues if it is a data bucket.
    fn begin(slab: &mut Slab, now_ms: u64, first: Part) -> Result<(Returned, Option<Changes>), String> {
        let Part { table, seat, state, .. } = first;
        let (bucket, changes) = match state.ok_or_else(damaged)? {
            State::Parity(shares) => {
                let keeper = Keeper::returned((now_ms, slab), seat, shares).map_err(full)?;
                (ReturnedBucket::Parity(keeper), None)
            }
            State::Data { changes, unconfirmed, noted } => {
                let recovered = Recovered::new(slab, seat, noted).map_err(full)?;
                (ReturnedBucket::Data(Box::new(recovered)), Some((changes, unconfirmed)))
            }
        };
        Ok((Returned { table, seat, bucket }, changes))
    }

    /// Adds the lines of a part.
    fn put(&mut self, slab: &mut Slab, lines: Vec<(Rank, Bytes)>) -> Result<(), String> {
        for (rank, line) in lines {
            let put = match &mut self.bucket {
                ReturnedBucket::Data(recovered) => recovered.put(slab, rank, line.into_vec()),
                ReturnedBucket::Parity(keeper) => keeper.put(slab, rank, &line).map(|()| true),
            };
            if !put.map_err(full)? {
                return Err(damaged());
            }
        }
        Ok(())
    }
}

fn damaged() -> String {
    "a file of a bucket with parity is missing or damaged".into()
}

fn full(Full: Full) -> String {
    "the memory for tables is full; give the node more, and start it again".into()
}

/// Writes a bucket whose lines `lines` returns, from a cursor on.
fn write_bucket(
    (table, seat): (TableId, Seat),
    state: State,
    lines: impl Fn(&[u8]) -> (Vec<(Rank, Bytes)>, Option<Bytes>),
    part_bytes: usize,
    put: &mut impl FnMut(&Part) -> Result<(), String>,
) -> Result<(), String> {
    let (mut state, mut cursor, mut number) = (Some(state), Some(Bytes::default()), 0);
    while cursor.is_some() {
        let mut part = Part { table, seat, number, state: state.take(), lines: Vec::new(), is_last: false };
        let mut bytes = 0;
        while bytes < part_bytes
            && let Some(from) = cursor.take()
        {
            let (more, next) = lines(&from);
            bytes += more.iter().map(|(_, line)| line.len()).sum::<usize>();
            part.lines.extend(more);
            cursor = next;
        }
        part.is_last = cursor.is_none();
        put(&part)?;
        number += 1;
    }
    Ok(())
}

impl BucketServer {
    /// Passes all buckets that have seats on, in parts of about so many bytes.
    pub(in super::super) fn dump_seats(
        &mut self,
        part_bytes: usize,
        mut put: impl FnMut(&Part) -> Result<(), String>,
    ) -> Result<(), String> {
        let slab = &self.slab;
        let mut joining: BTreeMap<Seat, Vec<Noted>> = BTreeMap::new();
        for receipt in self.receipts.values() {
            if let (Some(seat), Some(arrived)) = (receipt.into, &receipt.arrived) {
                joining.entry(seat).or_default().extend(arrived.last.journal.iter().cloned());
            }
        }
        let Protection { groups, keepers, returned, .. } = &mut self.protection;
        let table = |group: GroupId| groups.get(&group).map(|group| group.spec.id);
        let mut keepers: Vec<_> =
            keepers.values().filter_map(|of| Some((table(of.seat.group)?, of))).collect();
        let members = members(&mut self.tables, &mut self.receipts, &mut self.retiring);
        let mut data: Vec<_> =
            members.filter_map(|found| Some((table(found.member.seat.group)?, found))).collect();
        for Returned { table, bucket, .. } in returned {
            match bucket {
                ReturnedBucket::Parity(keeper) => keepers.push((*table, keeper)),
                ReturnedBucket::Data(recovered) => {
                    let Recovered { tree, member, noted, .. } = &mut **recovered;
                    data.push((*table, Found { member, tree: Some(tree), journal: None, arrived: noted }));
                }
            }
        }
        for (table, found) in data {
            let mut noted = found.noted();
            let Found { member, tree, .. } = found;
            noted.extend(joining.remove(&member.seat).into_iter().flatten());
            let (changes, unconfirmed) = member.unconfirmed();
            let state = State::Data { changes, unconfirmed, noted };
            let lines = |from: &[u8]| tree.map_or((Vec::new(), None), |tree| member.lines(slab, tree, from));
            write_bucket((table, member.seat), state, lines, part_bytes, &mut put)?;
        }
        for (table, keeper) in keepers {
            let state = State::Parity(keeper.shares());
            let lines = |from: &[u8]| keeper.lines(slab, from);
            write_bucket((table, keeper.seat), state, lines, part_bytes, &mut put)?;
        }
        Ok(())
    }

    /// Takes a bucket from its parts, after `remove` has removed them. Must be called before anybody hears from this run
    /// of the server.
    pub(in super::super) fn return_seat(
        &mut self,
        now_ms: u64,
        parts: impl Iterator<Item = Result<Part, String>>,
        remove: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut begun, mut parts) = (None, (0..).zip(parts));
        let slab = &mut self.slab;
        let read = || {
            let mut is_over = false;
            for (number, part) in &mut parts {
                let mut part = part?;
                let (lines, seat) = (std::mem::take(&mut part.lines), part.seat);
                let is_next = !is_over && part.number == number;
                is_over = part.is_last;
                if begun.is_none() {
                    begun = Some(Returned::begin(slab, now_ms, part)?);
                }
                match &mut begun {
                    Some((returned, _)) if is_next && returned.seat == seat => returned.put(slab, lines)?,
                    _ => return Err(damaged()),
                }
            }
            if is_over { remove() } else { Err(damaged()) }
        };
        let done = read();
        let Some((mut returned, changes)) = begun else { return done };
        if done.is_err() {
            returned.clear(slab);
            return done;
        }
        if let (ReturnedBucket::Data(recovered), Some((changes, unconfirmed))) =
            (&mut returned.bucket, changes)
        {
            recovered.member.continues_after(slab, changes, unconfirmed);
        }
        self.protection.returned.push(returned);
        done
    }

    /// Takes the buckets from their files. Returns what could not be read.
    pub(in super::super) fn return_seats(&mut self, now_ms: u64, directory: &Path) -> Vec<String> {
        let bucket = |file: &Path| file.to_string_lossy().rsplit_once('-').map(|(of, _)| of.to_string());
        let mut failed = Vec::new();
        for files in files(directory, ENDING).chunk_by(|a, b| bucket(a) == bucket(b)) {
            let remove = || {
                let removed = files.iter().try_for_each(|file| small::remove(file));
                removed.and_then(|()| small::sync_directory(directory)).map_err(|why| why.to_string())
            };
            let returned = self.return_seat(now_ms, files.iter().map(|file| read(file)), remove);
            failed.extend(returned.err().map(|why| format!("{}: {why}", files[0].display())));
        }
        failed
    }

    /// Removes the returned buckets of tables that do not exist any more.
    pub(in super::super) fn forget_returned(&mut self, exists: impl Fn(TableId) -> bool) {
        for gone in self.protection.returned.extract_if(.., |returned| !exists(returned.table)) {
            gone.clear(&mut self.slab);
        }
    }

    /// The returned buckets that meet a condition.
    pub(super) fn take_returned(&mut self, is: impl Fn(Seat) -> bool) -> Vec<Returned> {
        self.protection.returned.extract_if(.., |returned| is(returned.seat)).collect()
    }
}

#[cfg(test)]
impl BucketServer {
    /// Ends this run, and passes its buckets on to a later run, as files do.
    pub(in super::super) fn returns_as(&mut self, now_ms: u64, later: &mut BucketServer) {
        use thalweg_base::codec::{Plain, decode};

        const PART_BYTES: usize = 20;
        self.is_gone = true;
        let mut buckets: BTreeMap<Seat, Vec<Vec<u8>>> = BTreeMap::new();
        let put = |part: &Part| {
            let mut bytes = Vec::new();
            part.put(&mut bytes);
            buckets.entry(part.seat).or_default().push(bytes);
            Ok(())
        };
        self.dump_seats(PART_BYTES, put).unwrap();
        for parts in buckets.into_values() {
            let parts = parts.iter().map(|bytes| Ok(decode::<Part>(bytes).unwrap()));
            later.return_seat(now_ms, parts, || Ok(())).unwrap();
        }
    }
}
