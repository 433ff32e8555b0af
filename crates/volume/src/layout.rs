//! The layout of a striped file: where its bytes are.
//!
//! ```text
//! file    |  stripe 0  |  stripe 1  |  stripe 2  |  stripe 3  | ...     stripe_bytes each
//! strip         0            1            2            0                of width 3
//! at            0            0            0        stripe_bytes         of the strip
//! slot      first        first + 1    first + 2      first              modulo slots
//! ```
//!
//! Model: a file has `width` strips. Stripe `n` is part of strip `n % width`. Copy `c` of strip `s` belongs to slot
//! `(first + s + c) % slots`, so the copies of one store's strips are on its neighbour (chained declustering; Hsiao and
//! DeWitt, 1990). The manager knows which store a slot has.
//! Invariant: every byte of a file has exactly one place in one strip, and strips have only the gaps of the file.
//! Non-goals: reading, and the stores of slots.

use crate::{Error, Result};

/// The most strips of a file: the inode has a bitmap of 64 bits for them.
pub const WIDTH_MAX: u32 = 64;
/// The most copies of a strip.
pub const COPIES_MAX: u32 = 2;
/// The default size of a stripe: small files are then on one store.
pub const STRIPE_BYTES: u64 = 1 << 20;
const STRIPE_BYTES_MIN: u64 = 4 << 10;
const STRIPE_BYTES_MAX: u64 = 1 << 30;

/// The layout that a directory sets for files that are created in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The number of strips of a file; 0 for one on each store.
    pub width: u32,
    /// The size of a stripe; for files of records, at most this much, in whole records.
    pub stripe_bytes: u64,
    /// The number of copies of each strip.
    pub copies: u32,
    /// The size of a record; 0 for a file without records.
    pub record_bytes: u32,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { width: 0, stripe_bytes: STRIPE_BYTES, copies: 1, record_bytes: 0 }
    }
}

impl Policy {
    /// An error with the reason, if no file could have this layout over this many slots.
    pub fn check(&self, slots: u32) -> Result<()> {
        let refuse = |text: String| Err(Error::Refused(text));
        let Policy { width, stripe_bytes, copies, record_bytes } = *self;
        if width > slots.min(WIDTH_MAX) {
            return refuse(format!(
                "a file cannot have {width} strips: the volume has {slots} stores, and a file at most {WIDTH_MAX} strips"
            ));
        }
        if !(STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&stripe_bytes) {
            return refuse(format!(
                "a stripe has between {STRIPE_BYTES_MIN} and {STRIPE_BYTES_MAX} bytes, not {stripe_bytes}"
            ));
        }
        if !(1..=COPIES_MAX.min(slots)).contains(&copies) {
            return refuse(format!(
                "a file has 1 copy or {COPIES_MAX}, each on a store of its own; {copies} do not fit a volume with {slots} of them"
            ));
        }
        if u64::from(record_bytes) > stripe_bytes {
            return refuse(format!(
                "a stripe of {stripe_bytes} bytes does not hold a record of {record_bytes}; give a larger --stripe"
            ));
        }
        Ok(())
    }
}

/// The layout of one file: plain numbers, with which both clients and stores can calculate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The number of slots of the volume when the file was created.
    pub slots: u32,
    /// The slot of strip 0.
    pub first: u32,
    /// The number of strips.
    pub width: u32,
    /// The number of copies of each strip.
    pub copies: u32,
    /// The size of a stripe: for files of records, a multiple of their length.
    pub stripe_bytes: u64,
    /// The size of a record; 0 for a file without records.
    pub record_bytes: u32,
}

/// A run of bytes of a file within one stripe, and so on one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The strip.
    pub strip: u32,
    /// The offset in the strip.
    pub strip_at: u64,
    /// The offset in the file.
    pub at: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Layout {
    /// The layout of a new file by this policy, whose strip 0 is in slot `first`.
    pub fn of(policy: &Policy, slots: u32, first: u32) -> Layout {
        assert!(first < slots, "slot {first} of {slots}");
        let record = u64::from(policy.record_bytes);
        let stripe_bytes =
            policy.stripe_bytes.checked_div(record).map_or(policy.stripe_bytes, |n| n * record);
        let width = if policy.width == 0 { slots.min(WIDTH_MAX) } else { policy.width };
        let layout = Layout {
            slots,
            first,
            width,
            copies: policy.copies,
            stripe_bytes,
            record_bytes: policy.record_bytes,
        };
        assert!(layout.is_sound(), "{layout:?} of {policy:?}");
        layout
    }

    /// Whether it is valid, which is checked when it is read from a disk.
    pub fn is_sound(&self) -> bool {
        (1..=self.slots.min(WIDTH_MAX)).contains(&self.width)
            && (1..=self.slots.min(COPIES_MAX)).contains(&self.copies)
            && (1..=STRIPE_BYTES_MAX).contains(&self.stripe_bytes)
            && self.first < self.slots
    }

    /// The slot of a copy of a strip.
    pub fn slot(&self, strip: u32, copy: u32) -> u32 {
        assert!(strip < self.width && copy < self.copies, "copy {copy} of strip {strip} of {self:?}");
        ((u64::from(self.first) + u64::from(strip) + u64::from(copy)) % u64::from(self.slots)) as u32
    }

    /// The pieces of `len` bytes from `at` on, in the order of the file.
    pub fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = Piece> {
        let Layout { width, stripe_bytes, .. } = *self;
        let end = at.checked_add(len).expect("a file has less than 2^64 bytes");
        let mut at = at;
        std::iter::from_fn(move || {
            let (stripe, inside) = (at / stripe_bytes, at % stripe_bytes);
            let len = (stripe_bytes - inside).min(end - at);
            let strip = (stripe % u64::from(width)) as u32;
            let piece = Piece { strip, strip_at: stripe / u64::from(width) * stripe_bytes + inside, at, len };
            at += len;
            (len > 0).then_some(piece)
        })
    }

    /// The offset in the file of an offset in a strip.
    pub fn file_at(&self, strip: u32, strip_at: u64) -> u64 {
        let row = strip_at / self.stripe_bytes * u64::from(self.width);
        (row + u64::from(strip)) * self.stripe_bytes + strip_at % self.stripe_bytes
    }

    /// The length of the shortest file in which a strip has this many bytes.
    pub fn file_len(&self, strip: u32, strip_len: u64) -> u64 {
        strip_len.checked_sub(1).map_or(0, |last| self.file_at(strip, last) + 1)
    }

    /// The length of a strip in a file of this length.
    pub fn strip_len(&self, strip: u32, file_len: u64) -> u64 {
        let row_bytes = self.stripe_bytes * u64::from(self.width);
        let (rows, rest) = (file_len / row_bytes, file_len % row_bytes);
        let inside = rest.saturating_sub(u64::from(strip) * self.stripe_bytes).min(self.stripe_bytes);
        rows * self.stripe_bytes + inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> Vec<Layout> {
        let mut layouts = Vec::new();
        for slots in 1..=4 {
            for width in 1..=slots {
                for (stripe_bytes, record_bytes) in [(1, 0), (2, 0), (3, 1), (7, 7)] {
                    let copies = slots.min(2);
                    layouts.push(Layout {
                        slots,
                        first: slots - 1,
                        width,
                        copies,
                        stripe_bytes,
                        record_bytes,
                    });
                }
            }
        }
        layouts
    }

    /// The model: strips as lists, filled byte by byte.
    #[test]
    fn every_byte_has_one_place_and_strips_have_no_gaps() {
        for layout in layouts() {
            for len in 0..40_u64 {
                let mut strips = vec![Vec::new(); layout.width as usize];
                for at in 0..len {
                    strips[(at / layout.stripe_bytes % u64::from(layout.width)) as usize].push(at);
                }
                for from in 0..=len {
                    let mut read: Vec<u64> = Vec::new();
                    for piece in layout.pieces(from, len - from) {
                        let strip = &strips[piece.strip as usize];
                        let (at, len) = (piece.strip_at as usize, piece.len as usize);
                        assert_eq!(strip[at], piece.at);
                        read.extend(&strip[at..at + len]);
                    }
                    assert_eq!(read, (from..len).collect::<Vec<_>>(), "{layout:?}");
                }
                for (strip, bytes) in (0..).zip(&strips) {
                    assert_eq!(layout.strip_len(strip, len), bytes.len() as u64, "{layout:?}, {len} bytes");
                    assert_eq!(
                        layout.file_len(strip, bytes.len() as u64),
                        bytes.last().map_or(0, |at| at + 1)
                    );
                    for (strip_at, at) in (0..).zip(bytes) {
                        assert_eq!(layout.file_at(strip, strip_at), *at);
                    }
                }
            }
        }
    }

    #[test]
    fn copies_of_a_strip_lie_on_neighbours() {
        let layout = Layout::of(&Policy { copies: 2, ..Policy::default() }, 4, 3);
        let slots: Vec<_> = (0..4).map(|strip| (layout.slot(strip, 0), layout.slot(strip, 1))).collect();
        assert_eq!(slots, [(3, 0), (0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn stripes_of_records_hold_whole_ones() {
        let layout = Layout::of(&Policy { record_bytes: 838, ..Policy::default() }, 3, 0);
        assert_eq!(layout.stripe_bytes, 1251 * 838);
        assert!(layout.stripe_bytes <= STRIPE_BYTES);
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused() {
        let sound = Policy::default();
        sound.check(1).unwrap();
        for (policy, word) in [
            (Policy { width: 4, ..sound }, "4 strips"),
            (Policy { stripe_bytes: 4095, ..sound }, "not 4095"),
            (Policy { stripe_bytes: (1 << 30) + 1, ..sound }, "not 1073741825"),
            (Policy { copies: 0, ..sound }, "; 0 do not fit"),
            (Policy { copies: 3, ..sound }, "; 3 do not fit"),
            (Policy { stripe_bytes: 4096, record_bytes: 4097, ..sound }, "record of 4097"),
        ] {
            let why = policy.check(3).unwrap_err().to_string();
            assert!(why.contains(word), "{why}");
        }
    }
}
