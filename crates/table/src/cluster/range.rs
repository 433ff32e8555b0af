//! The records of a range, as a program reads them.

use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, Result};
use super::interval::Interval;
use super::message::{Outcome, Page, Scan, What};
use super::pages::Pages;
use super::records::Records;
use super::table::{Shared, Table, now_ms};

/// Records of a range in order, read on demand. After an error there are no more.
pub struct Range {
    shared: Arc<Shared>,
    pages: Pages,
    ready: Records,
    has_failed: bool,
    /// When it ends, even if records are missing.
    until_ms: Option<u64>,
}

impl Range {
    pub(crate) fn new(table: &Table, scan: Scan) -> Range {
        Range {
            shared: Arc::clone(&table.shared),
            pages: Pages::new(scan),
            ready: Records::default(),
            has_failed: false,
            until_ms: None,
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

    /// Ends after this time with the records that have arrived by then, without an error: some may be missing
    /// (probabilistic termination in paper 002). [`Range::is_whole`] tells.
    pub fn within(mut self, time: Duration) -> Range {
        self.until_ms = Some(now_ms() + time.as_millis() as u64);
        self
    }

    /// Whether all records of the range were read.
    pub fn is_whole(&self) -> bool {
        self.pages.is_done() && self.ready.is_empty()
    }

    /// Whether the range is read without values.
    pub fn is_keys_only(&self) -> bool {
        self.pages.scan().what == What::Keys
    }

    fn with(mut self, change: impl FnOnce(&mut Scan)) -> Range {
        let mut scan = self.pages.scan().clone();
        change(&mut scan);
        self.pages = Pages::new(scan);
        self
    }

    /// The key and the value of the next record, without a copy for the caller; `None` at the end.
    ///
    /// # Errors
    /// If a node with records of the range cannot be reached. There are no more records then.
    pub fn read(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while self.ready.is_empty() && !self.has_failed {
            match self.page().inspect_err(|_| self.has_failed = true)? {
                Some(page) => self.ready = page.records,
                None => break,
            }
        }
        Ok(self.ready.next())
    }

    /// The number of records.
    pub(crate) fn count_all(mut self) -> Result<u64> {
        let mut count = 0;
        while let Some(page) = self.page()? {
            count += page.count;
        }
        Ok(count)
    }

    /// The numbers of records of the buckets, each with its interval of keys.
    pub(crate) fn counts(mut self) -> impl Iterator<Item = Result<(Interval, u64)>> + use<> {
        std::iter::from_fn(move || {
            self.page().map(|page| page.map(|page| (page.covered, page.count))).transpose()
        })
    }

    /// The next page.
    fn page(&mut self) -> Result<Option<Page>> {
        loop {
            // The next pages are on their way while this one is read.
            self.pages.ask(now_ms(), &mut self.shared.state().client);
            if let Some(page) = self.pages.next() {
                self.shared.flush();
                return Ok(Some(page));
            }
            if self.pages.is_done() {
                return Ok(None);
            }
            let mut arrived = 0;
            let asked = self.pages.numbers();
            let is_over = || self.until_ms.is_some_and(|until_ms| now_ms() >= until_ms);
            let mut outcome = None;
            self.shared.until(|state| {
                outcome = asked.iter().find_map(|number| {
                    arrived = *number;
                    state.take(*number)
                });
                outcome.is_some() || is_over()
            });
            let Some(outcome) = outcome else { return Ok(None) };
            let outcome = match outcome {
                Err(_) | Ok(Outcome::Refused(_)) if self.until_ms.is_some() => return Ok(None),
                outcome => outcome.map_err(Error::from)?,
            };
            let is_expected = match outcome {
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
        self.read().map(|record| record.map(|(key, value)| (key.into(), value.into()))).transpose()
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        self.pages.numbers().into_iter().for_each(|number| state.forget(number));
    }
}
