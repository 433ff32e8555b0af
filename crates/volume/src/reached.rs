//! A store elsewhere, whose methods become requests.
//!
//! Invariant: no message exceeds the limits.
//! Non-goals: how requests get there.

use std::ops::Range;

use thalweg_io::Space;

use crate::message::{DATA_BYTES_MAX, Reply, ranges};
use crate::request::{StoreAnswer, StoreRequest};
use crate::store::{SYNCED_MAX, Store, Strip, StripFacts, Write};
use crate::{Error, Result};

/// Sends requests to a store, and returns its answers. That makes it a store.
pub(crate) trait AsksStore: Send + Sync {
    /// The answer of the store. Bytes that are read fill `into`.
    fn ask_store(&self, request: StoreRequest, sent: &[u8], into: &mut [u8]) -> Result<StoreAnswer>;

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
    fn read(&self, strip: Strip, generation: u64, at: u64, into: &mut [u8]) -> Result<()> {
        let mut at = at;
        into.chunks_mut(DATA_BYTES_MAX).try_for_each(|some| {
            let bytes = some.len() as u32;
            self.done(StoreRequest::Read { strip, generation, at, bytes }, &[], some)?;
            at += u64::from(bytes);
            Ok(())
        })
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

    fn truncate(&self, strip: Strip, generation: u64, len: u64) -> Result<()> {
        self.done(StoreRequest::Truncate { strip, generation, len }, &[], &mut [])
    }

    fn next_data(&self, strip: Strip, generation: u64, at: u64) -> Result<Option<Range<u64>>> {
        match self.ask_store(StoreRequest::NextData { strip, generation, at }, &[], &mut [])? {
            StoreAnswer::Data(data) => Ok(data.map(|(start, end)| start..end)),
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

    fn space(&self) -> Result<Space> {
        match self.ask_store(StoreRequest::Space, &[], &mut [])? {
            StoreAnswer::Space(space) => Ok(space),
            other => wrong(&Reply::Store(other)),
        }
    }
}
