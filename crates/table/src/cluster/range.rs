//! The records of a range, as a program reads them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::error::{Error, Result};
use super::interval::Bytes;
use super::message::{Outcome, Scan, What};
use super::pages::{Found, Pages};
use super::table::{Shared, Table, now_ms};

/// Records of a range in order, read on demand. After an error there are no more.
pub struct Range {
    shared: Arc<Shared>,
    pages: Pages,
    ready: VecDeque<(Bytes, Bytes)>,
    has_failed: bool,
}

impl Range {
    pub(crate) fn new(table: &Table, scan: Scan) -> Range {
        Range {
            shared: Arc::clone(&table.shared),
            pages: Pages::new(scan),
            ready: VecDeque::new(),
            has_failed: false,
        }
    }

    /// Reads from the last record to the first. Like the methods below, only for a range that was not read yet.
    pub fn descending(self) -> Range {
        self.with(|scan| scan.is_descending = true)
    }

    /// Reads at most `limit` records.
    pub fn limit(self, limit: u64) -> Range {
        self.with(|scan| scan.limit = limit)
    }

    /// Reads keys without their values.
    pub fn keys_only(self) -> Range {
        self.with(|scan| scan.what = What::Keys)
    }

    fn with(mut self, change: impl FnOnce(&mut Scan)) -> Range {
        let mut scan = self.pages.scan().clone();
        change(&mut scan);
        self.pages = Pages::new(scan);
        self
    }

    /// The number of records.
    pub(crate) fn count_all(mut self) -> Result<u64> {
        let mut count = 0;
        while let Some((_, more)) = self.page()? {
            count += more;
        }
        Ok(count)
    }

    /// The next page.
    fn page(&mut self) -> Result<Option<Found>> {
        loop {
            if let Some(page) = self.pages.next() {
                return Ok(Some(page));
            }
            if self.pages.is_done() {
                return Ok(None);
            }
            self.pages.ask(now_ms(), &mut self.shared.state().client);
            let mut arrived = 0;
            let asked = self.pages.numbers();
            let outcome = self.shared.outcome(|state| {
                asked.iter().find_map(|number| {
                    arrived = *number;
                    state.take(*number)
                })
            });
            let is_expected = match outcome? {
                Outcome::Page(page) => self.pages.arrived(arrived, page),
                Outcome::Refused(why) => return Err(why.into()),
                Outcome::Answer(_) => false,
            };
            if !is_expected {
                return Err(Error::Refused("a node answered what it was not asked".into()));
            }
        }
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.ready.pop_front() {
                return Some(Ok((key.into(), value.into())));
            }
            if self.has_failed {
                return None;
            }
            match self.page() {
                Ok(Some((records, _))) => self.ready.extend(records),
                Ok(None) => return None,
                Err(why) => {
                    self.has_failed = true;
                    return Some(Err(why));
                }
            }
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        self.pages.numbers().into_iter().for_each(|number| state.forget(number));
    }
}
