//! A store elsewhere, whose methods become requests.
//!
//! Invariant: no message exceeds the limits.
//! Non-goals: how requests get there.

use std::ops::Range;

use thalweg_io::Space;

use crate::message::{DATA_BYTES_MAX, Reply, ranges};
use crate::request::{StoreAnswer, StoreRequest};
use crate::store::{SYNCED_MAX, Source, Store, Strip, StripFacts, Write};
use crate::{Error, Result};

/// The end of the longest strip.
const END_MAX: u64 = i64::MAX as u64;

/// Sends requests to a store, and returns its answers. That makes it a store.
pub(crate) trait AsksStore: Send + Sync {
    /// The answer of the store. Bytes that are read fill `into`.
    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer>;

    /// Whether a request begins at once.
    fn is_found(&self) -> bool {
        true
    }

    /// The strips of a file that this client wrote there and did not sync.
    fn unsynced_of(&self, _inode: u64) -> Vec<Strip> {
        Vec::new()
    }

    /// Sends a request whose answer has no content.
    fn done(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<()> {
        match self.ask_store(request, sent, into)? {
            StoreAnswer::Done => Ok(()),
            other => wrong(&Reply::Store(other)),
        }
    }
}

/// The error for an answer that does not fit its request.
pub(crate) fn wrong<T>(reply: &Reply) -> Result<T> {
    Err(Error::Refused(format!("another question was answered: {reply:.100?}")))
}

impl<A: AsksStore> Store for A {
    fn is_ready(&self) -> bool {
        self.is_found()
    }

    fn read(&self, strip: Strip, generation: u64, at: u64, into: &mut [u8]) -> Result<()> {
        let mut at = at;
        into.chunks_mut(DATA_BYTES_MAX).try_for_each(|some| {
            let bytes = some.len() as u32;
            self.done(StoreRequest::Read { strip, generation, at, bytes }, &[], some)?;
            at += u64::from(bytes);
            Ok(())
        })
    }

    fn unsynced(&self, inode: u64) -> Vec<Strip> {
        self.unsynced_of(inode)
    }

    fn write(&self, write: &Write, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            // Sent so that the strip is made.
            return self.done(StoreRequest::Write(*write), &[], &mut []);
        }
        let mut write = *write;
        from.chunks(DATA_BYTES_MAX).try_for_each(|some| {
            self.done(StoreRequest::Write(write), some, &mut [])?;
            write.at += some.len() as u64;
            Ok(())
        })
    }

    fn copy(&self, from: Source, to: &Write, len: u64) -> Result<()> {
        self.done(StoreRequest::Copy { from, to: *to, len }, &[], &mut [])
    }

    fn punch(&self, strip: Strip, generation: u64, bytes: Range<u64>) -> Result<()> {
        let Range { start: from, end: to } = bytes;
        self.done(StoreRequest::Punch { strip, generation, from, to }, &[], &mut [])
    }

    fn truncate(&self, strip: Strip, generation: u64, len: u64) -> Result<()> {
        self.done(StoreRequest::Truncate { strip, generation, len }, &[], &mut [])
    }

    fn next_data(&self, strip: Strip, generation: u64, at: u64) -> Result<Option<Range<u64>>> {
        match self.ask_store(StoreRequest::NextData { strip, generation, at }, &[], &mut [])? {
            // Whoever asks for the next range goes on at its end, so a range that does not get there would have no end.
            StoreAnswer::Data(data)
                if data.is_none_or(|(start, end)| at <= start && start < end && end <= END_MAX) =>
            {
                Ok(data.map(|(start, end)| start..end))
            }
            other => wrong(&Reply::Store(other)),
        }
    }

    fn sync(&self, strips: &[Strip]) -> Result<Vec<u64>> {
        let mut numbers = Vec::with_capacity(strips.len());
        for some in strips.chunks(SYNCED_MAX) {
            match self.ask_store(StoreRequest::Sync(some.to_vec()), &[], &mut [])? {
                StoreAnswer::Synced(synced) if synced.len() == some.len() => numbers.extend(synced),
                other => return wrong(&Reply::Store(other)),
            }
        }
        Ok(numbers)
    }

    fn settle(&self, strip: Strip, generation: u64, sync: u64) -> Result<()> {
        self.done(StoreRequest::Settle { strip, generation, sync }, &[], &mut [])
    }

    fn changes(&self, strip: Strip, generation: u64) -> Result<Vec<Range<u64>>> {
        match self.ask_store(StoreRequest::Changes { strip, generation }, &[], &mut [])? {
            StoreAnswer::Changes(changes) => Ok(ranges(changes)),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn mend(&self, strip: Strip, generation: u64, at: u64, block: &[u8]) -> Result<()> {
        self.done(StoreRequest::Mend { strip, generation, at }, block, &mut [])
    }

    fn remove(&self, strip: Strip, below: u64) -> Result<()> {
        self.done(StoreRequest::Remove { strip, below }, &[], &mut [])
    }

    fn remove_all(&self, strips: &[Strip]) -> Result<()> {
        let remove = |some: &[Strip]| self.done(StoreRequest::RemoveAll(some.to_vec()), &[], &mut []);
        strips.chunks(SYNCED_MAX).try_for_each(remove)
    }

    fn facts(&self, strip: Strip) -> Result<Option<StripFacts>> {
        match self.ask_store(StoreRequest::Facts(strip), &[], &mut [])? {
            StoreAnswer::Facts(facts) => Ok(facts),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn list(&self) -> Result<Vec<Strip>> {
        match self.ask_store(StoreRequest::List, &[], &mut [])? {
            StoreAnswer::Strips(strips) => Ok(strips),
            other => wrong(&Reply::Store(other)),
        }
    }

    fn space(&self) -> Result<(Space, u64)> {
        match self.ask_store(StoreRequest::Space, &[], &mut [])? {
            StoreAnswer::Space(space, file_system) => Ok((space, file_system)),
            other => wrong(&Reply::Store(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Answers(Option<(u64, u64)>);

    impl AsksStore for Answers {
        fn ask_store(&self, _: StoreRequest, _: &[u8], _: &mut [u8]) -> Result<StoreAnswer> {
            Ok(StoreAnswer::Data(self.0))
        }
    }

    #[test]
    fn a_store_cannot_answer_with_data_that_has_no_end() {
        let strip = Strip { inode: 1, index: 0, copy: 0 };
        let next = |data| Answers(data).next_data(strip, 0, 4096);
        assert_eq!(next(None).unwrap(), None);
        assert_eq!(next(Some((4096, END_MAX))).unwrap(), Some(4096..END_MAX));
        for data in [(4095, 8192), (4096, 4096), (8192, 4096), (4096, u64::MAX)] {
            assert!(next(Some(data)).is_err(), "{data:?}");
        }
    }
}
