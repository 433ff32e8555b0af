//! Where scans continue, by the numbers that clients send back.
//!
//! Model: one table for all clients of a node, whichever thread serves them. A number is for one place in one scan, of
//! all keys or of the fields of one hash. A client may repeat its last request of a scan, not an earlier one.
//! Invariant: a number that was not given for this scan, or is no longer stored, is an error, never another place.
//! Numbers, bytes and lifetimes have limits.

use std::collections::{BTreeMap, HashMap};

use thalweg_wire::new_id;

use crate::error::Refusal;
use crate::resp::integer;

/// The limits of stored cursors: their number, their bytes, and their lifetime.
const CURSORS_MAX: usize = 1 << 16;
const CURSORS_BYTES_MAX: usize = 16 << 20;
const CURSOR_LIVES_MS: i64 = 10 * 60 * 1000;
/// Numbers are random, so that none is guessed by accident. They have as many bits as the numbers of JavaScript and Lua
/// hold exactly.
const NUMBER_BITS: u32 = 53;

/// A place in a scan.
struct Given {
    /// The hash that is scanned, or `None` for all keys.
    of: Option<Box<[u8]>>,
    /// The key that was looked at last.
    after: Vec<u8>,
    /// The number by which the scan came here.
    before: u64,
    /// The order in which numbers were given.
    serial: u64,
    given_ms: i64,
}

impl Given {
    fn bytes(&self) -> usize {
        self.after.len() + self.of.as_ref().map_or(0, |of| of.len())
    }
}

/// The cursors of a node.
#[derive(Default)]
pub(crate) struct Cursors {
    given: HashMap<u64, Given>,
    /// The numbers in the order in which they were given.
    order: BTreeMap<u64, u64>,
    bytes: usize,
    serial: u64,
}

/// Where a scan begins: the number of its cursor, and the key after which it continues.
pub(crate) type Begin = (u64, Option<Vec<u8>>);

impl Cursors {
    /// Where the scan of a hash, or of all keys, continues.
    pub(crate) fn place(&mut self, argument: &[u8], of: Option<&[u8]>) -> Result<Begin, Refusal> {
        let number = integer(argument).and_then(|number| u64::try_from(number).ok());
        let number = number.ok_or(Refusal::Cursor)?;
        if number == 0 {
            return Ok((0, None));
        }
        let given = self.given.get(&number).filter(|given| given.of.as_deref() == of);
        let Given { after, before, .. } = given.ok_or(Refusal::Cursor)?;
        let (after, before) = (after.clone(), *before);
        // The client has the answer by which it got this number.
        self.forget(before);
        Ok((number, Some(after)))
    }

    /// A number for the key that a scan looked at last; 0 at its end.
    pub(crate) fn give(
        &mut self,
        (before, _): &Begin,
        of: Option<&[u8]>,
        after: Option<Vec<u8>>,
        given_ms: i64,
    ) -> u64 {
        let Some(after) = after else { return 0 };
        self.serial += 1;
        let given = Given { of: of.map(Into::into), after, before: *before, serial: self.serial, given_ms };
        let number = loop {
            let number = new_id().0 as u64 >> (u64::BITS - NUMBER_BITS);
            if number != 0 && !self.given.contains_key(&number) {
                break number;
            }
        };
        self.bytes += given.bytes();
        self.order.insert(given.serial, number);
        self.given.insert(number, given);
        while let Some((_, oldest)) = self.order.first_key_value()
            && (self.given.len() > CURSORS_MAX
                || self.bytes > CURSORS_BYTES_MAX
                || self.given[oldest].given_ms + CURSOR_LIVES_MS < given_ms)
            && *oldest != number
        {
            self.forget(*oldest);
        }
        number
    }

    fn forget(&mut self, number: u64) {
        if let Some(given) = self.given.remove(&number) {
            self.bytes -= given.bytes();
            self.order.remove(&given.serial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    #[test]
    fn a_number_is_for_one_place_of_one_scan() {
        let mut cursors = Cursors::default();
        let begin = cursors.place(b"0", None).unwrap();
        let first = cursors.give(&begin, None, Some(b"k".to_vec()), 0);
        let other = cursors.give(&begin, Some(b"hash"), Some(b"f".to_vec()), 0);
        assert!(first >> NUMBER_BITS == 0 && first != other);
        assert_eq!(cursors.place(&text(first), None), Ok((first, Some(b"k".to_vec()))));
        assert_eq!(cursors.place(&text(first), None), Ok((first, Some(b"k".to_vec()))), "a repeated request");
        assert_eq!(cursors.place(&text(other), Some(b"hash")), Ok((other, Some(b"f".to_vec()))));
        for (number, of) in [(first, Some(&b"hash"[..])), (other, None), (other, Some(b"other"))] {
            assert_eq!(cursors.place(&text(number), of), Err(Refusal::Cursor));
        }
        for unknown in ["1", "2", "-1", "x", "00", "18446744073709551616"] {
            assert_eq!(cursors.place(unknown.as_bytes(), None), Err(Refusal::Cursor), "{unknown}");
        }
        // Of each scan two are stored.
        let mut number = first;
        for i in 0..10u8 {
            let begin = cursors.place(&text(number), None).unwrap();
            number = cursors.give(&begin, None, Some(vec![i]), 0);
        }
        assert_eq!((cursors.given.len(), cursors.bytes), (3, 1 + 1 + 5));
        assert_eq!(cursors.place(&text(first), None), Err(Refusal::Cursor));
        assert_eq!(cursors.give(&begin, None, None, 0), 0);
    }

    #[test]
    fn there_is_a_limit_of_numbers_bytes_and_time() {
        let mut cursors = Cursors::default();
        let begin = (0, None);
        let numbers: Vec<u64> =
            (0..CURSORS_MAX + 10).map(|_| cursors.give(&begin, None, Some(vec![0]), 0)).collect();
        assert_eq!((cursors.given.len(), cursors.order.len()), (CURSORS_MAX, CURSORS_MAX));
        assert!(
            cursors.place(&text(numbers[9]), None).is_err()
                && cursors.place(&text(numbers[10]), None).is_ok()
        );
        let long = cursors.give(&begin, None, Some(vec![0; CURSORS_BYTES_MAX]), 0);
        assert_eq!(cursors.given.len(), 1);
        let late = cursors.give(&begin, None, Some(vec![1]), CURSOR_LIVES_MS + 1);
        assert!(cursors.place(&text(long), None).is_err() && cursors.place(&text(late), None).is_ok());
        assert_eq!((cursors.given.len(), cursors.bytes), (1, 1));
    }
}
