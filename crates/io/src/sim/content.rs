//! The bytes of one simulated file: what a reader sees, and what a power loss may leave of it.
//!
//! Model: the pages that were ever written, and the former contents of each page that changed since the last sync.
//!
//! ```text
//! pages   | A2 | B | (hole) | D2 |        what a reader sees
//! before  | A1 |            | none |      what the medium is sure to have, where that differs
//! ```
//! Invariant: without a power loss `before` and the durable length have no effect.
//! Non-goals: names, and who may write.

use std::collections::BTreeMap;

use thalweg_base::rng::Rng;

/// The bytes that a medium writes atomically.
const SECTOR: usize = 512;
/// The size of a page: the unit of space, and of the pieces into which a crash cuts a write.
pub(crate) const PAGE: usize = 4096;

type Page = Box<[u8; PAGE]>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    len: u64,
    durable_len: u64,
    pages: BTreeMap<u64, Page>,
    /// The durable contents of the pages that changed since the last sync; `None` is a hole.
    before: BTreeMap<u64, Option<Page>>,
    /// The number of pages from the start that are reserved on the disk, written or not.
    reserved: u64,
    /// The number of pages that are allocated on the disk.
    allocated: u64,
}

/// The pages that a stretch of bytes touches, each as (page, first byte in it, bytes of it).
pub(crate) fn split(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done as u64;
        let start = (here % PAGE as u64) as usize;
        let n = (PAGE - start).min(len - done);
        done += n;
        (n > 0).then_some((here / PAGE as u64, start, n))
    })
}

fn blank() -> Page {
    Box::new([0; PAGE])
}

impl Content {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated * PAGE as u64
    }

    /// The next written stretch at or after `at` in the first `len` bytes: its first byte, and the one after its last.
    pub(crate) fn next_data(&self, at: u64, len: u64) -> Option<(u64, u64)> {
        let first = self.pages.range(at / PAGE as u64..).next().map(|(page, _)| *page)?;
        let end = (first..).find(|page| !self.pages.contains_key(page))?;
        let from = at.max(first * PAGE as u64);
        (from < len).then_some((from, len.min(end * PAGE as u64)))
    }

    /// Copies the bytes from `at` on. Returns how many there were.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let there = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
        let mut done = 0;
        for (page, start, n) in split(at, there) {
            match self.pages.get(&page) {
                Some(bytes) => into[done..done + n].copy_from_slice(&bytes[start..start + n]),
                None => into[done..done + n].fill(0),
            }
            done += n;
        }
        assert_eq!(done, there);
        there
    }

    /// Writes as many bytes as `room` more pages on the disk allow. Returns how many that were.
    pub(crate) fn write(&mut self, at: u64, from: &[u8], mut room: u64) -> usize {
        let mut done = 0;
        for (page, start, n) in split(at, from.len()) {
            let grows = page >= self.reserved && !self.pages.contains_key(&page);
            if grows && room == 0 {
                break;
            }
            let bytes = self.change(page);
            bytes[start..start + n].copy_from_slice(&from[done..done + n]);
            if grows {
                room -= 1;
                self.allocated += 1;
            }
            done += n;
        }
        if done > 0 {
            self.len = self.len.max(at + done as u64);
        }
        done
    }

    /// A page to be changed; its former contents are kept until the next sync.
    fn change(&mut self, page: u64) -> &mut [u8; PAGE] {
        self.before.entry(page).or_insert_with(|| self.pages.get(&page).cloned());
        self.pages.entry(page).or_insert_with(blank)
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        let kept = len.div_ceil(PAGE as u64);
        for (page, old) in self.pages.split_off(&kept) {
            self.before.entry(page).or_insert(Some(old));
        }
        self.cut_page(len);
        self.len = len;
        self.reserved = self.reserved.min(kept);
        self.count_allocated();
    }

    /// Makes bytes a hole; whole pages of it take no space, unless they are reserved.
    pub(crate) fn punch(&mut self, at: u64, len: u64) {
        let end = self.len.min(at.saturating_add(len));
        for (page, start, n) in split(at, end.saturating_sub(at) as usize) {
            if !self.pages.contains_key(&page) {
                continue;
            }
            self.change(page)[start..start + n].fill(0);
            if n == PAGE || (start == 0 && page * PAGE as u64 + n as u64 == self.len) {
                self.pages.remove(&page);
            }
        }
        self.count_allocated();
    }

    /// Zeros the bytes after the end of the file, which must read as zeros when the file grows again.
    fn cut_page(&mut self, len: u64) {
        let (page, start) = (len / PAGE as u64, (len % PAGE as u64) as usize);
        if start > 0 && self.pages.contains_key(&page) {
            self.change(page)[start..].fill(0);
        }
    }

    /// The number of pages that `reserve(len)` adds on the disk.
    pub(crate) fn reserve_takes(&self, len: u64) -> u64 {
        let wanted = len.div_ceil(PAGE as u64);
        if wanted <= self.reserved {
            return 0;
        }
        wanted - self.reserved - self.pages.range(self.reserved..wanted).count() as u64
    }

    pub(crate) fn reserve(&mut self, len: u64) {
        self.reserved = self.reserved.max(len.div_ceil(PAGE as u64));
        self.len = self.len.max(len);
        self.count_allocated();
    }

    fn count_allocated(&mut self) {
        self.allocated = self.reserved + self.pages.range(self.reserved..).count() as u64;
    }

    pub(crate) fn sync(&mut self) {
        self.before.clear();
        self.durable_len = self.len;
    }

    /// Loses changes since the last sync at random: all, none, or page by page, some of them torn.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        // All and nothing are as likely as the mixture, because many errors need one of them.
        let mode = rng.below(4);
        let len = match mode {
            0 => self.len,
            1 => self.durable_len,
            _ => between(self.durable_len, self.len, rng),
        };
        for (page, old) in std::mem::take(&mut self.before) {
            let fate = if mode < 2 { mode } else { rng.below(3) };
            match (fate, old) {
                (0, _) => {}
                (1, Some(old)) => drop(self.pages.insert(page, old)),
                (1, None) => drop(self.pages.remove(&page)),
                (_, old) => self.tear(page, old.as_deref().unwrap_or(&[0; PAGE]), rng),
            }
        }
        self.set_len(len);
        self.sync();
    }

    /// Puts sectors of `old` back at one end of a page.
    fn tear(&mut self, page: u64, old: &[u8; PAGE], rng: &mut Rng) {
        let cut = (1 + rng.below((PAGE / SECTOR - 1) as u64)) as usize * SECTOR;
        let bytes = self.pages.entry(page).or_insert_with(blank);
        let range = if rng.one_in(2) { 0..cut } else { cut..PAGE };
        bytes[range.clone()].copy_from_slice(&old[range]);
    }

    /// Damages one bit, on the medium too.
    pub(crate) fn flip_bit(&mut self, bit: u64) {
        assert!(bit / 8 < self.len, "bit {bit} of a file of {} bytes", self.len);
        let byte = bit / 8;
        let page = self.pages.entry(byte / PAGE as u64).or_insert_with(blank);
        page[(byte % PAGE as u64) as usize] ^= 1 << (bit % 8);
        self.count_allocated();
    }
}

/// One of two lengths, or a page's end between them.
fn between(one: u64, other: u64, rng: &mut Rng) -> u64 {
    let (low, high) = (one.min(other), one.max(other));
    match rng.below(3) {
        0 => low,
        1 => high,
        _ => ((low + rng.below(high - low + 1)) / PAGE as u64 * PAGE as u64).max(low),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![0; content.len() as usize];
        assert_eq!(content.read(0, &mut all), all.len());
        all
    }

    #[test]
    fn writes_cuts_and_growth_read_like_a_vector_of_bytes() {
        let mut rng = Rng::new(1);
        let (mut content, mut model) = (Content::default(), Vec::new());
        for round in 0..300u32 {
            let at = rng.below(3 * PAGE as u64) as usize;
            match rng.below(5) {
                0 => {
                    content.set_len(at as u64);
                    model.resize(at, 0);
                }
                1 => content.sync(),
                2 => {
                    let len = rng.below(2 * PAGE as u64) as usize;
                    content.punch(at as u64, len as u64);
                    let end = model.len().min(at + len);
                    model[at.min(end)..end].fill(0);
                }
                _ => {
                    let new = vec![round as u8; rng.below(2 * PAGE as u64) as usize];
                    assert_eq!(content.write(at as u64, &new, u64::MAX), new.len());
                    if !new.is_empty() {
                        model.resize(model.len().max(at + new.len()), 0);
                        model[at..at + new.len()].copy_from_slice(&new);
                    }
                }
            }
            assert_eq!(bytes(&content), model, "round {round}");
            assert_eq!(content.allocated(), content.pages.len() as u64);
        }
    }

    #[test]
    fn what_was_synced_survives_every_power_loss() {
        for seed in 0..100 {
            let mut content = Content::default();
            content.write(0, &[7; 3 * PAGE], u64::MAX);
            content.sync();
            content.write(3 * PAGE as u64, &[8; PAGE], u64::MAX);
            content.lose_power(&mut Rng::new(seed));
            assert!(bytes(&content)[..3 * PAGE].iter().all(|&b| b == 7), "seed {seed}");
        }
    }

    #[test]
    fn what_was_not_synced_is_kept_lost_and_torn_by_chance() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..100 {
            let mut content = Content::default();
            content.write(0, &[1; PAGE], u64::MAX);
            content.sync();
            content.write(0, &[2; PAGE], u64::MAX);
            content.lose_power(&mut Rng::new(seed));
            let after = bytes(&content);
            match after.iter().filter(|&&b| b == 2).count() {
                PAGE => kept += 1,
                0 => lost += 1,
                n => {
                    assert_eq!(n % SECTOR, 0);
                    torn += 1;
                }
            }
        }
        assert!(kept > 10 && lost > 10 && torn > 10, "{kept} {lost} {torn}");
    }

    #[test]
    fn room_is_taken_once_and_given_back_by_a_cut() {
        let mut content = Content::default();
        assert_eq!(content.write(0, &[1; 3 * PAGE], 2), 2 * PAGE);
        assert_eq!(content.reserve_takes(4 * PAGE as u64), 2);
        content.reserve(4 * PAGE as u64);
        assert_eq!(content.allocated(), 4);
        assert_eq!(content.write(2 * PAGE as u64, &[1; 2 * PAGE], 0), 2 * PAGE, "reserved room is there");
        content.set_len(1);
        assert_eq!(content.allocated(), 1);
    }
}
