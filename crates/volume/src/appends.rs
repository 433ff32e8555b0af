//! Appends of several clients to one file: each gets bytes of its own after the end.
//!
//! Model: the server reserves the bytes before a client writes them. A client whose append failed gives them back. If they
//! are the last ones that are reserved, the next append lies there.
//! Invariant: what is reserved for one append is not reserved for another, unless it was given back.
//! Non-goals: what a failed append left at stores; see appending.rs.

use std::collections::BTreeMap;

/// The most failed appends of a file that others lie behind.
const FAILED_MAX: usize = 1000;

/// The appends to a file that several sessions have open.
#[derive(Default)]
pub(crate) struct Appends {
    /// The end of the bytes that are reserved.
    pub(crate) reserved: u64,
    /// Failed appends that are not given back: where each ends, and where it begins.
    failed: BTreeMap<u64, u64>,
    /// What a failed append left is being cut off.
    pub(crate) is_cutting: bool,
    /// How often the file was resized.
    pub(crate) resizes: u64,
}

impl Appends {
    /// Notes the size that the file was given.
    pub(crate) fn resized(&mut self, size: u64) {
        (self.reserved, self.failed) = (size, BTreeMap::new());
        self.resizes += 1;
    }

    pub(crate) fn reserve(&mut self, at: u64, bytes: u64) {
        self.reserved = at.saturating_add(bytes);
        // These are reserved again.
        self.failed.split_off(&at.saturating_add(1));
    }

    /// Notes a failed append. Returns whether nothing is reserved behind it.
    pub(crate) fn fails(&mut self, at: u64, end: u64) -> bool {
        if self.failed.len() < FAILED_MAX && end <= self.reserved {
            self.failed.insert(end, at);
        }
        end == self.reserved
    }

    /// Gives back what was reserved for the last appends, if they failed.
    pub(crate) fn give_back(&mut self) {
        while let Some(at) = self.failed.remove(&self.reserved) {
            self.reserved = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_appends_give_back_what_they_reserved_in_any_order() {
        let mut appends = Appends::default();
        appends.reserve(10, 30);
        assert!(!appends.fails(10, 20) && !appends.fails(20, 30));
        appends.give_back();
        assert_eq!(appends.reserved, 40, "another append lies behind them");
        assert!(appends.fails(30, 40));
        appends.give_back();
        assert_eq!((appends.reserved, appends.failed.len()), (10, 0));
        // A repeated request does not give back what is reserved again.
        assert!(!appends.fails(30, 40));
        appends.reserve(10, 30);
        assert!(!appends.fails(20, 30));
        appends.give_back();
        assert_eq!(appends.reserved, 40);
    }
}
