//! The two local files of a strip: its bytes, and their checksums.
//!
//! ```text
//! INODE-INDEX-COPY.strip   the bytes as they are, with holes
//! INODE-INDEX-COPY.sums header; from byte 128 on the intent; from byte 1024 on a CRC-32C of 4 bytes for each 4 KiB of
//!                          the strip; 0 is a hole
//! ```
//!
//! Model: a write goes to both files. Before that, the regions that it touches are put into the *intent*, durably. They
//! leave it when the client that asked for a sync knows that the other copy is durable too ([`OpenStrip::settle`]). So
//! after a crash, only blocks within the intent may differ from their checksums, which are then computed again; after a
//! crash or an absence of the other copy, the two differ only there. A new strip's intent is all of it.
//! Invariant: a block is read only if its checksum matches. For a block that the strip's end cuts, the checksum is that
//! of the block padded with zeros; a hole must be zeros.
//! Non-goals: finding the files, and reporting what is lost.

use std::ops::Range;

use crate::layout::Layout;
use crate::manager::cuts;
use crate::regions::{REGION, REGIONS_BYTES, Regions};
use crate::store::Strip;
use crate::{Error, Result};
use thalweg_io::File;

/// The size of a block, which has one checksum.
pub(crate) const BLOCK: usize = 4 << 10;
const ZEROS: [u8; BLOCK] = [0; BLOCK];
/// The offset of the intent, and that of the checksums.
const INTENT_AT: usize = 128;
const SUMS_AT: u64 = 1024;
const HEADER_BYTES: usize = 72;
const _: () = assert!(INTENT_AT + REGIONS_BYTES == SUMS_AT as usize && HEADER_BYTES <= INTENT_AT);
const MAGIC: &[u8; 8] = b"THWSUMS2";
/// The size of the stretch whose checksums are scanned at a time.
const SCANNED: u64 = 256 * REGION;
/// How far the intent extends past a write that follows another one, so that a sequential writer makes it durable once
/// for each 64 MiB.
const AHEAD: u64 = 64 * REGION;
/// After this many notes since the last settling, each covers twice as much: a random writer of a large file makes
/// hundreds of them durable, not one for each region.
const NOTES: u32 = 32;
/// How often that is doubled at most.
const DOUBLED_MAX: u32 = 12;

/// What precedes the checksums. Little-endian; all of it fits a sector, which is written whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) strip: Strip,
    pub(crate) generation: u64,
    pub(crate) layout: Layout,
    /// The names of the strip's files may not be durable yet.
    pub(crate) is_new: bool,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let Header { strip, generation, layout, is_new } = self;
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        let large = [strip.inode, *generation, u64::from(*is_new), layout.stripe_bytes];
        bytes.extend(large.map(u64::to_le_bytes).concat());
        let Layout { slots, first, width, copies, record_bytes, .. } = *layout;
        let small = [strip.index, strip.copy, slots, first, width, copies, record_bytes];
        bytes.extend(small.map(u32::to_le_bytes).concat());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.try_into().expect("the fields have as many bytes as the header")
    }

    /// Decodes a header; `None` if these bytes are not one.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let (told, sum) = bytes.split_at(HEADER_BYTES - 4);
        let rest = told.strip_prefix(MAGIC)?;
        if sum != crc32c::crc32c(told).to_le_bytes() {
            return None;
        }
        let (large, small) = rest.split_at(4 * 8);
        let large = |i: usize| u64::from_le_bytes(large[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let small = |i: usize| u32::from_le_bytes(small[4 * i..4 * i + 4].try_into().expect("4 bytes"));
        let layout = Layout {
            slots: small(2),
            first: small(3),
            width: small(4),
            copies: small(5),
            stripe_bytes: large(3),
            record_bytes: small(6),
        };
        let strip = Strip { inode: large(0), index: small(0), copy: small(1) };
        let is_sound = layout.is_sound() && strip.index < layout.width && strip.copy < layout.copies;
        is_sound.then_some(Header { strip, generation: large(1), layout, is_new: large(2) != 0 })
    }
}

/// A strip whose files are open.
pub(crate) struct OpenStrip {
    data: File,
    sums: File,
    header: Header,
    len: u64,
    /// The regions in which checksums may not match after a crash, and in which the other copy may differ.
    intent: Regions,
    /// The number of syncs since it was opened, and the regions that were written since the last one.
    syncs: u64,
    since_sync: Regions,
    /// The regions that were written since the last call of `changes`, if there was one.
    since_asked: Option<Regions>,
    /// How often the intent grew since it was settled.
    notes: u32,
}

impl OpenStrip {
    fn new(data: File, sums: File, header: Header, len: u64, intent: Regions) -> OpenStrip {
        let (since_sync, since_asked) = (Regions::NONE, None);
        OpenStrip { data, sums, header, len, intent, syncs: 0, since_sync, since_asked, notes: 0 }
    }

    /// A new strip in two empty files.
    pub(crate) fn create(
        data: File,
        sums: File,
        strip: Strip,
        generation: u64,
        layout: Layout,
    ) -> Result<OpenStrip> {
        let header = Header { strip, generation, layout, is_new: true };
        sums.write_at(0, &header.encode())?;
        Ok(OpenStrip::new(data, sums, header, 0, Regions::ALL))
    }

    /// Opens the strip in two files, and computes checksums again where a crash may have cut a write short; `None` if
    /// the header was never written.
    pub(crate) fn open(data: File, sums: File, strip: Strip) -> Result<Option<OpenStrip>> {
        let Some(header) = header_of(&sums, strip)? else { return Ok(None) };
        let len = data.metadata()?.len;
        let intent = if header.is_new { Regions::ALL } else { intent_of(&sums)? };
        let mut open = OpenStrip::new(data, sums, header, len, intent);
        if open.header.is_new {
            // It is unknown which bytes are not durable.
            open.since_sync = Regions::ALL;
        }
        for range in open.intent.ranges(open.summed_end()?) {
            open.sum_again(&range)?;
        }
        Ok(Some(open))
    }

    /// Whether a strip that has only a file of checksums was still being made.
    pub(crate) fn is_unborn(sums: &File, strip: Strip) -> Result<bool> {
        Ok(header_of(sums, strip)?.is_none_or(|header| header.is_new))
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `into` with the bytes from `at` on.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let sums = self.sums_of(at, into.len())?;
        let (mut at, mut into, mut sums) = (at, into, &sums[..]);
        while !into.is_empty() {
            let inside = (at % BLOCK as u64) as usize;
            let n = if inside > 0 || into.len() < BLOCK {
                let mut block = [0; BLOCK];
                self.read_blocks(at - inside as u64, &mut block, &sums[..1])?;
                let n = (BLOCK - inside).min(into.len());
                into[..n].copy_from_slice(&block[inside..inside + n]);
                n
            } else {
                let n = into.len() / BLOCK * BLOCK;
                self.read_blocks(at, &mut into[..n], &sums[..n / BLOCK])?;
                n
            };
            sums = &sums[n.div_ceil(BLOCK)..];
            into = &mut into[n..];
            at += n as u64;
        }
        Ok(())
    }

    /// The first range at or after `at` that is in the file of bytes or has checksums: all else is a hole, and sound.
    pub(crate) fn next_data(&self, at: u64) -> Result<Option<Range<u64>>> {
        let data = self.data.next_data(at, self.len)?.map(|(start, end)| start..end);
        let end = match &data {
            Some(data) => data.start,
            None => self.summed_end()?,
        };
        Ok(self.next_summed(at..end)?.or(data))
    }

    /// The first of these bytes that have checksums, although they may not be in the file of bytes: that was cut short.
    fn next_summed(&self, within: Range<u64>) -> Result<Option<Range<u64>>> {
        let block = BLOCK as u64;
        let mut here = within.start / block * block;
        while here < within.end && !within.is_empty() {
            let end = sum_at(within.end.div_ceil(block));
            let Some((first, _)) = self.sums.next_data(sum_at(here / block), end)? else { break };
            here = (first - SUMS_AT) / 4 * block;
            let n = (within.end - here).min(SCANNED);
            let sums = self.sums_of(here, n as usize)?;
            if let Some(first) = sums.iter().position(|sum| *sum != 0) {
                let run = sums[first..].iter().take_while(|sum| **sum != 0).count();
                let (start, end) = (here + first as u64 * block, here + (first + run) as u64 * block);
                return Ok(Some(start.max(within.start)..end.min(within.end)));
            }
            here += n;
        }
        Ok(None)
    }

    /// The end of the last block with a checksum, or of the bytes if that block cuts them.
    fn summed_end(&self) -> Result<u64> {
        let blocks = self.sums.metadata()?.len.saturating_sub(SUMS_AT) / 4;
        let end = blocks.saturating_mul(BLOCK as u64);
        Ok(if end <= self.len.next_multiple_of(BLOCK as u64) { self.len } else { end })
    }

    /// Writes all of `from` at offset `at`.
    pub(crate) fn write(&mut self, at: u64, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let sums = self.sums_with(at, from)?;
        let end = at + from.len() as u64;
        self.intend(at..end)?;
        let written = self.data.write_at(at, from).map_err(Error::from);
        let written = written.and_then(|()| self.put_sums(at, &sums));
        if let Err(e) = written {
            // Part of it may have been written. What was there before is read with that part, as in any file; what lies
            // beyond the end is cut off, which gives its blocks back to a full disk.
            if self.data.metadata()?.len > self.len {
                self.data.set_len(self.len)?;
            }
            self.sum_again(&(at..end))?;
            return Err(e);
        }
        self.len = self.len.max(end);
        Ok(())
    }

    /// Makes these bytes a hole, as far as the strip has them.
    pub(crate) fn punch(&mut self, bytes: Range<u64>) -> Result<()> {
        let block = BLOCK as u64;
        let (start, end) = (bytes.start, bytes.end.min(self.len));
        if start >= end {
            return Ok(());
        }
        let first = start.next_multiple_of(block);
        // The block that the strip's end cuts goes as a whole.
        let last = if end == self.len { end.next_multiple_of(block) } else { end / block * block };
        for edge in [start..first.min(end), last.max(first).min(end)..end] {
            if !edge.is_empty() && self.sums_of(edge.start, 1)? != [0] {
                self.write(edge.start, &ZEROS[..(edge.end - edge.start) as usize])?;
            }
        }
        if first >= last || self.next_data(first)?.is_none_or(|data| data.start >= last) {
            return Ok(());
        }
        self.intend(first..last.min(self.len))?;
        let punched = self.data.punch(first, last - first);
        let sums = sum_at(first / block)..sum_at(last / block);
        let punched = punched.and_then(|()| self.sums.punch(sums.start, sums.end - sums.start));
        if let Err(e) = punched {
            self.sum_again(&(first..last))?;
            return Err(e.into());
        }
        Ok(())
    }

    /// The space on the disk that its bytes take.
    pub(crate) fn allocated(&self) -> Result<u64> {
        Ok(self.data.allocated()?)
    }

    /// Adopts a newer generation, and cuts the strip to `len` bytes if the file was cut since the last one. Durable.
    pub(crate) fn truncate(&mut self, generation: u64, len: u64) -> Result<()> {
        if cuts(self.header.generation) < cuts(generation) && len < self.len {
            self.intend(len..self.len)?;
            let inside = (len % BLOCK as u64) as usize;
            let mut block = [0; BLOCK];
            self.read(len - inside as u64, &mut block[..inside])?;
            self.data.set_len(len)?;
            self.data.sync()?;
            self.len = len;
            self.sums.set_len(sum_at(len.div_ceil(BLOCK as u64)))?;
            if inside > 0 {
                self.put_sums(len, &[sum(&block)])?;
            }
        }
        self.header.generation = generation;
        self.put_header()?;
        Ok(self.sums.sync()?)
    }

    /// Rewrites a damaged block, if these bytes match its checksum. They come from the other copy, and do not match if
    /// a client has written there in the meantime.
    pub(crate) fn mend(&mut self, at: u64, block: &[u8; BLOCK]) -> Result<()> {
        let expected = self.sums_of(at, BLOCK)?;
        let is_damaged = self.read_blocks(at, &mut [0; BLOCK], &expected).is_err();
        if is_damaged && matches(block, expected[0]) {
            let n = self.len.saturating_sub(at).min(BLOCK as u64) as usize;
            self.data.write_at(at, &block[..n])?;
        }
        Ok(())
    }

    /// Makes all of it durable, except for its names, unless its file system was just synced. Returns the number of
    /// this sync.
    pub(crate) fn sync(&mut self, is_done: bool) -> Result<u64> {
        if !is_done {
            self.data.sync()?;
            self.sums.sync()?;
        }
        self.syncs += 1;
        let written = std::mem::replace(&mut self.since_sync, Regions::NONE);
        if self.header.is_new {
            self.intent = written;
        }
        Ok(self.syncs)
    }

    /// Notes that its names are durable. This note itself need not be durable.
    pub(crate) fn named(&mut self) -> Result<()> {
        self.header.is_new = false;
        self.put_header()
    }

    /// Removes from the intent what was written before the sync of this number, if that was the last one. This change
    /// need not be durable.
    pub(crate) fn settle(&mut self, sync: u64) -> Result<()> {
        if sync == self.syncs {
            self.header.is_new = false;
            self.intent = self.since_sync.clone();
            self.notes = 0;
            self.put_header()?;
        }
        Ok(())
    }

    /// The ranges that were written since the previous call, or, on the first call, in which the other copy may differ.
    pub(crate) fn changes(&mut self) -> Vec<Range<u64>> {
        let asked = self.since_asked.replace(Regions::NONE);
        asked.as_ref().unwrap_or(&self.intent).ranges(self.len)
    }

    /// The ranges in which the other copy may differ.
    pub(crate) fn unsettled(&self) -> Vec<Range<u64>> {
        self.intent.ranges(self.len)
    }

    /// Whether the names of its files may not be durable yet.
    pub(crate) fn is_new(&self) -> bool {
        self.header.is_new
    }

    /// Adds these bytes to the intent, durably, before they are written.
    fn intend(&mut self, bytes: Range<u64>) -> Result<()> {
        self.since_sync.add(&bytes);
        self.since_asked.iter_mut().for_each(|since| since.add(&bytes));
        if self.intent.cover(&bytes) {
            return Ok(());
        }
        let mut intent = self.intent.clone();
        let first = bytes.start / REGION * REGION;
        let before = first.saturating_sub(REGION)..first;
        intent.add(&match !before.is_empty() && self.intent.cover(&before) {
            // A sequential writer is expected to continue.
            true => bytes.start..bytes.end.saturating_add(AHEAD),
            false => {
                let note = REGION << (self.notes / NOTES).min(DOUBLED_MAX);
                bytes.start / note * note..bytes.end.next_multiple_of(note)
            }
        });
        let before = std::mem::replace(&mut self.intent, intent);
        let noted = self.put_header().and_then(|()| Ok(self.sums.sync()?));
        match noted {
            Ok(()) => self.notes += 1,
            Err(_) => self.intent = before,
        }
        noted
    }

    fn put_header(&self) -> Result<()> {
        let mut bytes = [0; SUMS_AT as usize];
        bytes[..HEADER_BYTES].copy_from_slice(&self.header.encode());
        bytes[INTENT_AT..].copy_from_slice(&self.intent.encode());
        Ok(self.sums.write_at(0, &bytes)?)
    }

    /// The checksums of the blocks that `len` bytes from `at` on touch.
    fn sums_of(&self, at: u64, len: usize) -> Result<Vec<u32>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let (first, last) = (at / BLOCK as u64, (at + len as u64 - 1) / BLOCK as u64);
        let mut bytes = vec![0; 4 * (last - first + 1) as usize];
        self.sums.read_at(sum_at(first), &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|sum| u32::from_le_bytes(sum.try_into().expect("4 bytes"))).collect())
    }

    fn put_sums(&self, at: u64, sums: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        Ok(self.sums.write_at(sum_at(at / BLOCK as u64), &bytes)?)
    }

    /// The checksums that the blocks touched by a write will have after it.
    fn sums_with(&self, at: u64, from: &[u8]) -> Result<Vec<u32>> {
        let (mut at, mut from) = (at, from);
        let mut sums = Vec::with_capacity(from.len() / BLOCK + 2);
        while !from.is_empty() {
            let inside = (at % BLOCK as u64) as usize;
            let n = (BLOCK - inside).min(from.len());
            if n == BLOCK {
                sums.push(sum(&from[..n]));
            } else {
                let mut block = [0; BLOCK];
                // A block that is overwritten up to the strip's end keeps none of its old bytes.
                if inside > 0 || at + (n as u64) < self.len {
                    self.read(at - inside as u64, &mut block)?;
                }
                block[inside..inside + n].copy_from_slice(&from[..n]);
                sums.push(sum(&block));
            }
            from = &from[n..];
            at += n as u64;
        }
        Ok(sums)
    }

    /// Reads whole blocks and verifies their checksums.
    fn read_blocks(&self, at: u64, into: &mut [u8], sums: &[u32]) -> Result<()> {
        let n = self.data.read_at(at, into)?;
        into[n..].fill(0);
        for (i, (block, expected)) in into.chunks_exact(BLOCK).zip(sums).enumerate() {
            if !matches(block, *expected) {
                return Err(Error::Damaged { path: self.data.path().into(), at: at + (i * BLOCK) as u64 });
            }
        }
        Ok(())
    }

    /// Computes the checksums of these bytes again where they do not match.
    fn sum_again(&mut self, bytes: &Range<u64>) -> Result<()> {
        let mut piece = vec![0; REGION as usize];
        let mut at = bytes.start / BLOCK as u64 * BLOCK as u64;
        while let Some(data) = self.next_data(at)?.filter(|data| data.start < bytes.end) {
            at = data.start / BLOCK as u64 * BLOCK as u64;
            let n = ((data.end.min(bytes.end) - at).min(REGION) as usize).next_multiple_of(BLOCK);
            let read = self.data.read_at(at, &mut piece[..n])?;
            piece[read..n].fill(0);
            let found = self.sums_of(at, n)?;
            let is_behind = |i: usize| at + (i * BLOCK) as u64 >= self.len;
            let sums: Vec<u32> = (piece[..n].chunks_exact(BLOCK).zip(&found).enumerate())
                .map(|(i, (block, expected))| match matches(block, *expected) {
                    true => *expected,
                    false if is_behind(i) => 0,
                    false => sum(block),
                })
                .collect();
            if sums != found {
                self.put_sums(at, &sums)?;
            }
            at += n as u64;
        }
        Ok(())
    }
}

/// The header of a file of checksums; `None` if it was never written.
fn header_of(sums: &File, strip: Strip) -> Result<Option<Header>> {
    let mut bytes = [0; HEADER_BYTES];
    sums.read_at(0, &mut bytes)?;
    if bytes == [0; HEADER_BYTES] {
        return Ok(None);
    }
    let damaged = || Error::Damaged { path: sums.path().into(), at: 0 };
    Header::decode(&bytes).filter(|header| header.strip == strip).map(Some).ok_or_else(damaged)
}

/// Reads the intent from a file of checksums.
fn intent_of(sums: &File) -> Result<Regions> {
    let mut bytes = [0; REGIONS_BYTES];
    sums.read_at(INTENT_AT as u64, &mut bytes)?;
    Ok(Regions::decode(&bytes))
}

/// The offset of the checksum of a block.
fn sum_at(block: u64) -> u64 {
    SUMS_AT + 4 * block
}

/// The checksum of a block. 0 stands for a hole, so a block with that checksum gets 1.
fn sum(block: &[u8]) -> u32 {
    debug_assert_eq!(block.len(), BLOCK);
    crc32c::crc32c(block).max(1)
}

fn matches(block: &[u8], expected: u32) -> bool {
    if expected == 0 { block == ZEROS } else { sum(block) == expected }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use thalweg_base::rng::Rng;
    use thalweg_io::Access;
    use thalweg_io::sim::Sim;

    use super::*;

    fn settled(strip: &mut OpenStrip) {
        let number = strip.sync(false).unwrap();
        strip.settle(number).unwrap();
        assert_eq!((strip.unsettled().len(), strip.notes), (0, 0));
    }

    #[test]
    fn a_writer_makes_few_notes_durable_and_the_intent_says_where_it_wrote() {
        let sim = Sim::new(1);
        sim.make_dir("/s");
        let file = |name| File::open(&sim.io(), &Path::new("/s").join(name), Access::Create).unwrap();
        let strip = Strip { inode: 2, index: 0, copy: 0 };
        let layout =
            Layout { slots: 2, first: 0, width: 1, copies: 2, stripe_bytes: REGION, record_bytes: 0 };
        let mut strip = OpenStrip::create(file("data"), file("sums"), strip, 0, layout).unwrap();
        strip.write(7000 * REGION, &[1]).unwrap();
        settled(&mut strip);
        (0..300).for_each(|region| strip.write(region * REGION, &[1]).unwrap());
        assert!(strip.notes <= 2 + 300 / 64, "{} notes", strip.notes);
        settled(&mut strip);
        let mut rng = Rng::new(1);
        let regions: Vec<u64> = (0..7000).map(|_| rng.below(7000)).collect();
        for (n, region) in regions.iter().enumerate() {
            strip.write(region * REGION + 5, &[1]).unwrap();
            let noted: u64 = strip.unsettled().iter().map(|range| range.end - range.start).sum();
            assert!(n >= 10 || noted <= (n as u64 + 1) * REGION, "the first notes are of single regions");
        }
        assert!(strip.notes < 500, "{} notes", strip.notes);
        let unsettled = strip.unsettled();
        let is_in = |region: &u64| unsettled.iter().any(|range| range.contains(&(region * REGION + 5)));
        assert!(regions.iter().all(is_in));
        // What is written between a sync and the message that both copies have it stays in the intent.
        let number = strip.sync(false).unwrap();
        strip.write(9 * REGION, &[1]).unwrap();
        strip.settle(number).unwrap();
        assert_eq!(strip.unsettled().first(), Some(&(9 * REGION..10 * REGION)));
        strip.sync(false).unwrap();
        strip.settle(number).unwrap();
        assert_eq!(strip.unsettled().len(), 1, "this was not the last sync");
    }
}
