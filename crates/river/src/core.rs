//! The core of an outlet: it accepts each batch once, proves it, releases it in order, and grants credits.
//!
//! Model: the input consists of splits. Each split comes from one source, which sends a sequence of batches to each
//! lane. [`Core::apply`] takes an event and returns what to do about it, without clock, I/O or record bytes.
//!
//! ```text
//! batches of a split -> Keep -> Give (if ordered: when it is the split's turn) -> end and close messages agree, or Fail
//! ```
//!
//! Invariant: each batch of each split is given out once, in sequence within its lane. A split is proved only if
//! every lane has the number of batches, records and bytes, and the checksum, that its source reports. Without this
//! proof there is no [`Effect::End`].
//! Invariant: a source has at least `exclusive` credits, minus the buffers that hold its batches. All sources
//! together have at most `sources x exclusive + float`.
//! Credits follow Flink's network stack.
//! Relies on: messages of a source arrive once each, in the order in which they were sent. Anything else is a fault.
//! Non-goals: storing batches; transport; repeating a split: if a source is lost, the whole river runs again.

use std::collections::{BTreeMap, BTreeSet};

use crate::head::{Head, Kind};

/// Credits that a source should have while there are buffers: for one batch on its way, and one being filled.
const CREDITS_AHEAD: u64 = 2;

/// The parameters of an outlet.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The id of the river.
    pub river: u64,
    /// The number of inlets.
    pub sources: usize,
    /// Buffers reserved for each source.
    pub exclusive: u64,
    /// Buffers shared by all sources.
    pub float: u64,
    /// Whether splits are given out in the order of their numbers.
    pub ordered: bool,
}

/// Identifies a batch: split, lane, sequence.
pub type BatchId = (u64, u32, u64);

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A message of a source arrived. If it is a batch, it is dropped unless the answer contains [`Effect::Keep`].
    Arrived(usize, Head),
    /// A batch of this source was given out, and its buffer is free now.
    Freed(usize),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Store the batch that arrived, under its id.
    Keep,
    /// Give out the batch of this id, which came from this source.
    Give(usize, BatchId),
    /// Send this to a source.
    Say(usize, Head),
    /// Everything was given out and proved.
    End,
    /// The river has failed.
    Fail(Fault),
}

/// Why a river failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A message belongs to another river.
    #[error("received a message of river {0:x}; connect it to that river")]
    Foreign(u64),
    /// A batch arrived without a credit.
    #[error("inlet {0} sent a batch without a credit")]
    NoCredit(usize),
    /// A source disconnected before it finished.
    #[error("inlet {0} has gone before its end; run again")]
    Lost(usize),
    /// A source sent a batch of a split that is closed or belongs to another source.
    #[error(
        "inlet {0} sent a part of split {1}, which is closed or belongs to another inlet; put each split once"
    )]
    DuplicateSplit(usize, u64),
    /// A split is incomplete: its number, and the batches that were sent and that arrived.
    #[error("split {0} is incomplete or damaged: {1} batches were sent, {2} arrived; run again")]
    Incomplete(u64, u64, u64),
    /// All sources have finished, but this split is missing or incomplete.
    #[error("split {0} was never whole; put it before the end")]
    Missing(u64),
}

/// A set of numbers. The numbers from 0 up to the first gap take no memory.
#[derive(Debug, Default)]
struct NumberSet {
    upto: u64,
    beyond: BTreeSet<u64>,
}

impl NumberSet {
    /// Adds a number, which must be new.
    fn insert(&mut self, number: u64) {
        self.beyond.insert(number);
        while self.beyond.remove(&self.upto) {
            self.upto += 1;
        }
    }

    fn has(&self, number: u64) -> bool {
        number < self.upto || self.beyond.contains(&number)
    }
}

/// Sums over batches or over lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    count: u64,
    records: u64,
    bytes: u64,
    checksum: u128,
}

impl Sums {
    fn add(&mut self, count: u64, (records, bytes, checksum): (u64, u64, u128)) {
        // A peer may send any numbers, so overflow must not panic.
        self.count = self.count.wrapping_add(count);
        self.records = self.records.wrapping_add(records);
        self.bytes = self.bytes.wrapping_add(bytes);
        self.checksum = self.checksum.wrapping_add(checksum);
    }

    fn said(head: &Head) -> Sums {
        Sums { count: head.sequence, records: head.records, bytes: head.bytes, checksum: head.checksum }
    }
}

/// A lane of a split.
#[derive(Debug, Default)]
struct Lane {
    arrived: Sums,
    /// The sums that its end message reports.
    said: Option<Sums>,
    given: u64,
}

/// A split that is not completely given out.
#[derive(Debug)]
struct Split {
    source: usize,
    lanes: BTreeMap<u32, Lane>,
}

impl Split {
    /// Whether every lane agrees with its end message, and all of them with the close message.
    fn is_whole(&self, close: Sums) -> bool {
        let mut ends = Sums::default();
        for lane in self.lanes.values() {
            ends.add(1, (lane.arrived.records, lane.arrived.bytes, lane.arrived.checksum));
        }
        ends == close && self.lanes.values().all(|lane| lane.said == Some(lane.arrived))
    }

    /// The number of batches according to the end messages, and the number that arrived.
    fn batches(&self) -> (u64, u64) {
        let said = |lane: &Lane| lane.said.map_or(0, |said| said.count);
        let all = self.lanes.values().map(said).fold(0, u64::saturating_add);
        (all, self.lanes.values().map(|lane| lane.arrived.count).sum())
    }
}

#[derive(Debug, Clone)]
struct Source {
    /// All credits granted so far, and the batches that used them.
    promised: u64,
    used: u64,
    /// Buffers that hold its batches, including those given out.
    holding: u64,
    /// One past its last split, once it has finished.
    finished: Option<u64>,
}

impl Source {
    /// Unused credits.
    fn granted(&self) -> u64 {
        self.promised - self.used
    }

    fn floating(&self, exclusive: u64) -> u64 {
        (self.granted() + self.holding).saturating_sub(exclusive)
    }
}

/// The outlet's side of the protocol.
#[derive(Debug)]
pub struct Core {
    rules: Rules,
    sources: Vec<Source>,
    splits: BTreeMap<u64, Split>,
    proved: NumberSet,
    /// In an ordered river, the next split to give out.
    next_split: u64,
    over: bool,
}

impl Core {
    /// The initial state.
    pub fn new(rules: Rules) -> Core {
        assert!(rules.exclusive > 0, "without a credit of its own a source may wait for ever");
        // Every source starts with its reserved credits.
        let source = Source { promised: rules.exclusive, used: 0, holding: 0, finished: None };
        let sources = vec![source; rules.sources];
        Core {
            rules,
            sources,
            splits: BTreeMap::new(),
            proved: NumberSet::default(),
            next_split: 0,
            over: false,
        }
    }

    /// Buffers that hold a batch or are reserved by a credit. The parameters limit their number.
    pub fn buffers(&self) -> u64 {
        self.sources.iter().map(|source| source.granted() + source.holding).sum()
    }

    /// Handles an event.
    pub fn apply(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.over {
            return effects;
        }
        let outcome = match event {
            Event::Arrived(source, head) => self.arrived(source, &head, &mut effects),
            Event::Freed(source) => {
                self.sources[source].holding -= 1;
                Ok(())
            }
        };
        if let Err(fault) = outcome.and_then(|()| self.look_for_end(&mut effects)) {
            self.over = true;
            effects.push(Effect::Fail(fault));
        } else if !self.over {
            self.grant(&mut effects);
        }
        effects
    }

    fn arrived(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        if head.river != self.rules.river {
            return Err(Fault::Foreign(head.river));
        }
        match head.kind {
            Kind::Batch => self.batch(source, head, effects)?,
            Kind::End => {
                let split = self.split(source, head.split)?;
                split.lanes.entry(head.lane).or_default().said = Some(Sums::said(head));
            }
            Kind::Close => self.close(source, head, effects)?,
            Kind::Finish => self.sources[source].finished = Some(head.split),
            Kind::Lost => return Err(Fault::Lost(source)),
            Kind::Credit | Kind::Gone => {}
        }
        Ok(())
    }

    /// The split to which a message of this source belongs.
    fn split(&mut self, source: usize, number: u64) -> Result<&mut Split, Fault> {
        if self.proved.has(number) {
            return Err(Fault::DuplicateSplit(source, number));
        }
        let partials = || Split { source, lanes: BTreeMap::new() };
        let split = self.splits.entry(number).or_insert_with(partials);
        if split.source != source {
            return Err(Fault::DuplicateSplit(source, number));
        }
        Ok(split)
    }

    fn batch(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        if self.sources[source].granted() == 0 {
            return Err(Fault::NoCredit(source));
        }
        let lane = self.split(source, head.split)?.lanes.entry(head.lane).or_default();
        if head.sequence != lane.arrived.count {
            return Err(Fault::Incomplete(head.split, head.sequence, lane.arrived.count));
        }
        lane.arrived.add(1, (head.records, head.bytes, head.checksum));
        self.sources[source].used += 1;
        self.sources[source].holding += 1;
        effects.push(Effect::Keep);
        self.give(head.split, effects);
        Ok(())
    }

    /// Handles the last message of a split, which proves it.
    fn close(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let split = self.split(source, head.split)?;
        if !split.is_whole(Sums::said(head)) {
            let (said, arrived) = split.batches();
            return Err(Fault::Incomplete(head.split, said, arrived));
        }
        self.proved.insert(head.split);
        self.give(head.split, effects);
        Ok(())
    }

    /// Gives out what is allowed of this split, and of the splits that follow it.
    fn give(&mut self, first: u64, effects: &mut Vec<Effect>) {
        let mut number = first;
        while !self.rules.ordered || number == self.next_split {
            let Some(split) = self.splits.get_mut(&number) else { return };
            for (&lane_number, lane) in &mut split.lanes {
                for sequence in lane.given..lane.arrived.count {
                    effects.push(Effect::Give(split.source, (number, lane_number, sequence)));
                }
                lane.given = lane.arrived.count;
            }
            if !self.proved.has(number) {
                return;
            }
            self.splits.remove(&number);
            if !self.rules.ordered {
                return;
            }
            self.next_split += 1;
            number = self.next_split;
        }
    }

    /// Grants credits to sources that have few.
    fn grant(&mut self, effects: &mut Vec<Effect>) {
        let Rules { exclusive, float, river, .. } = self.rules;
        let mut floating: u64 = self.sources.iter().map(|source| source.floating(exclusive)).sum();
        let sending = self.sources.iter_mut().enumerate().filter(|(_, source)| source.finished.is_none());
        for (i, source) in sending {
            let own = exclusive.saturating_sub(source.granted() + source.holding);
            let shared =
                (CREDITS_AHEAD.saturating_sub(source.granted() + own)).min(float.saturating_sub(floating));
            if own + shared > 0 {
                source.promised += own + shared;
                floating += shared;
                let head = Head { sequence: source.promised, ..Head::new(Kind::Credit, river) };
                effects.push(Effect::Say(i, head));
            }
        }
    }

    fn look_for_end(&mut self, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let last = |most: u64, source: &Source| Some(most.max(source.finished?));
        let Some(splits) = self.sources.iter().try_fold(0, last) else { return Ok(()) };
        if self.proved.upto < splits {
            return Err(Fault::Missing(self.proved.upto));
        }
        self.over = true;
        effects.push(Effect::End);
        Ok(())
    }
}
