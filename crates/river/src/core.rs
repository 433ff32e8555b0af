//! The core of an outlet: what came counts once, is proved, and leaves in order; who may send, and how much.
//!
//! Model: the input is cut into splits, each split comes from one source, and of each split a source sends each lane a
//! sequence of batches. [`Core::apply`] takes what came and says what to do with it: no clock, no I/O, no bytes.
//!
//! ```text
//! batches of a split -> Keep -> Give (in an ordered river when its turn comes) -> ends and close agree with them, or Fail
//! ```
//!
//! Invariant: each batch of each split is given out once, in sequence within its lane; a split is proved only if every lane
//! has as many batches, records and bytes, and the checksum, that its source said. Without that proof there is no
//! [`Effect::End`].
//! Invariant: a source has at least `exclusive` credits less what is held of it, and all sources together never more than
//! `sources x exclusive + float`.
//! Source of the idea: credits as in Flink's network stack.
//! Relies on: messages of a source come once each, in the order in which it sent them. One that breaks this is a fault.
//! Non-goals: where batches lie, how messages travel, running a split again: who loses a source runs the river again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::head::{Head, Kind};

/// Credits that a source is kept in while buffers last: one on its way, one being filled.
const CREDITS_AHEAD: u64 = 2;

/// What an outlet goes by.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The river's name.
    pub river: u64,
    /// Inlets.
    pub sources: usize,
    /// Buffers that each source has for itself.
    pub exclusive: u64,
    /// Buffers for whoever needs them.
    pub float: u64,
    /// Splits are given out in their order.
    pub ordered: bool,
}

/// What a batch is known by: split, lane and sequence.
pub type Name = (u64, u32, u64);

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A message of a source came. What a batch carries is dropped unless the answer has [`Effect::Keep`].
    Arrived(usize, Head),
    /// A buffer with a batch of this source, which was given out, is free again.
    Freed(usize),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Hold the batch that came under its name.
    Keep,
    /// Hand out the batch of this name, which this source sent.
    Give(usize, Name),
    /// Say this to a source.
    Say(usize, Head),
    /// Everything was given out and proved.
    End,
    /// It cannot end well.
    Fail(Fault),
}

/// Why a river cannot end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A message is of another river.
    Foreign(u64),
    /// A batch came without a credit.
    NoCredit(usize),
    /// A source has gone before it said its end.
    Lost(usize),
    /// A source sent of a split that is closed, or that another source sends.
    DuplicateSplit(usize, u64),
    /// What came is not what the source says it sent: split, batches that it sent and that came.
    Incomplete(u64, u64, u64),
    /// All sources have finished, and this split never was whole.
    Missing(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Foreign(river) => {
                write!(f, "a message of river {river:x} came; connect it where it belongs")
            }
            Fault::NoCredit(source) => write!(f, "source {source} sent a batch without a credit"),
            Fault::Lost(source) => write!(f, "source {source} has gone before its end; run again"),
            Fault::DuplicateSplit(source, split) => {
                write!(
                    f,
                    "source {source} sent of split {split}, which is closed or another source's; put each split once"
                )
            }
            Fault::Incomplete(split, said, arrived) => {
                write!(f, "split {split}: {arrived} of {said} batches came as they were sent; run again")
            }
            Fault::Missing(split) => write!(f, "split {split} was never whole; put it before the end"),
        }
    }
}

/// Numbers that came, in any order; those from 0 on without a gap cost nothing.
#[derive(Debug, Default)]
struct Numbers {
    upto: u64,
    beyond: BTreeSet<u64>,
}

impl Numbers {
    /// Adds a number that is not there.
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

/// Sums over batches, or over lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    count: u64,
    records: u64,
    bytes: u64,
    checksum: u128,
}

impl Sums {
    fn add(&mut self, count: u64, (records, bytes, checksum): (u64, u64, u128)) {
        // What a peer says may be anything; wrong sums are no panic.
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
    /// What its end says.
    said: Option<Sums>,
    given: u64,
}

/// A split that is not given out whole.
#[derive(Debug)]
struct Split {
    source: usize,
    lanes: BTreeMap<u32, Lane>,
}

impl Split {
    /// Whether every lane has what its end says, and the ends add up to what the close says.
    fn is_whole(&self, close: Sums) -> bool {
        let mut ends = Sums::default();
        for lane in self.lanes.values() {
            ends.add(1, (lane.arrived.records, lane.arrived.bytes, lane.arrived.checksum));
        }
        ends == close && self.lanes.values().all(|lane| lane.said == Some(lane.arrived))
    }

    /// Batches that the ends say, and that came.
    fn batches(&self) -> (u64, u64) {
        let said = |lane: &Lane| lane.said.map_or(0, |said| said.count);
        let all = self.lanes.values().map(said).fold(0, u64::saturating_add);
        (all, self.lanes.values().map(|lane| lane.arrived.count).sum())
    }
}

#[derive(Debug, Clone)]
struct Source {
    /// Credits that it was given, and the batches that came for them.
    promised: u64,
    used: u64,
    /// Buffers that hold batches of it, those given out included.
    holding: u64,
    /// One past the last split that it knows of, once it has said its end.
    finished: Option<u64>,
}

impl Source {
    /// Credits that it has not used.
    fn granted(&self) -> u64 {
        self.promised - self.used
    }

    fn floating(&self, exclusive: u64) -> u64 {
        (self.granted() + self.holding).saturating_sub(exclusive)
    }
}

/// An outlet's side of the protocol.
#[derive(Debug)]
pub struct Core {
    rules: Rules,
    sources: Vec<Source>,
    splits: BTreeMap<u64, Split>,
    proved: Numbers,
    /// The split whose turn it is, where there is an order.
    turn: u64,
    over: bool,
}

impl Core {
    /// Of an outlet that has met nobody yet.
    pub fn new(rules: Rules) -> Core {
        assert!(rules.exclusive > 0, "without a credit of its own a source may wait for ever");
        // Every source begins with what it has for itself.
        let source = Source { promised: rules.exclusive, used: 0, holding: 0, finished: None };
        let sources = vec![source; rules.sources];
        Core { rules, sources, splits: BTreeMap::new(), proved: Numbers::default(), turn: 0, over: false }
    }

    /// Buffers that credits were given for or that are in use: never more than the rules say.
    pub fn buffers(&self) -> u64 {
        self.sources.iter().map(|source| source.granted() + source.holding).sum()
    }

    /// Takes what happened and says what to do.
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

    /// The split that a message of this source is about.
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

    /// Takes the last message of a split, which proves it.
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

    /// Gives out what may leave of this split, and of those whose turn comes by it.
    fn give(&mut self, first: u64, effects: &mut Vec<Effect>) {
        let mut number = first;
        while !self.rules.ordered || number == self.turn {
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
            self.turn += 1;
            number = self.turn;
        }
    }

    /// Gives credits to sources that have few.
    fn grant(&mut self, effects: &mut Vec<Effect>) {
        let Rules { exclusive, float, river, .. } = self.rules;
        let mut floating: u64 = self.sources.iter().map(|source| source.floating(exclusive)).sum();
        let sending = self.sources.iter_mut().enumerate().filter(|(_, source)| source.finished.is_none());
        for (i, source) in sending {
            let own = exclusive.saturating_sub(source.granted() + source.holding);
            let lent =
                (CREDITS_AHEAD.saturating_sub(source.granted() + own)).min(float.saturating_sub(floating));
            if own + lent > 0 {
                source.promised += own + lent;
                floating += lent;
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
