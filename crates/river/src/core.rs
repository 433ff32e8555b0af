//! The core of an outlet: what came counts once, is proved, and leaves in order; who may send, and how much.
//!
//! Model: the input is cut into splits, each execution of a split is an attempt, and an attempt sends each lane a
//! sequence of batches. [`Core::apply`] takes what came and says what to do with it: no clock, no I/O, no bytes.
//!
//! ```text
//! batches of (split, attempt) -> Keep -> ends and close agree with what came -> proved -> Give, else Void
//! ```
//!
//! Law: of each split exactly one attempt is given out, each of its batches once, in sequence within its lane; an
//! attempt is proved only if every lane has as many batches, records and bytes, and the checksum, that its source said.
//! Law: what comes twice changes nothing: batches bear serials, and credits are told as their sum.
//! Law: a source has at least `exclusive` credits less what is held of it, and all sources together never more than
//! `sources x exclusive + float`.
//! Source of the idea: credits as in Flink's network stack, attempts as in MapReduce's backup tasks.
//! Non-goals: where batches lie, how messages travel, who runs a split again.

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
    /// Batches are kept until their attempt is proved, so that a split can be run again.
    pub keeps: bool,
    /// Splits are given out in their order.
    pub ordered: bool,
    /// Messages of a source come in the order in which it sent them, so that behind the close nothing can be late.
    pub in_order: bool,
}

/// What a batch is known by: split, attempt, lane and sequence.
pub type Name = (u64, u32, u32, u64);

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A message of a source came. What a batch carries waits for the answer, [`Effect::Keep`] or [`Effect::Drop`].
    Came(usize, Head),
    /// A buffer with a batch of this source, which was given out, is free again.
    Freed(usize),
    /// This source lives in an earlier epoch than this: what it still sends counts for nothing.
    Fence(usize, u32),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Hold the batch that came under its name.
    Keep,
    /// The batch that came counts for nothing.
    Drop,
    /// Hand out the batch of this name, which this source sent.
    Give(usize, Name),
    /// Let go of everything held of this attempt of a split.
    Void(u64, u32),
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
    /// A source has gone, and what it sent was given out already.
    Lost(usize),
    /// A split was begun again where nothing is kept.
    Again(u64),
    /// What came is not what the source says it sent: split, batches that were announced and that came.
    Short(u64, u64, u64),
    /// A source sent of an attempt at a split that is another source's.
    Mixed(usize, u64),
    /// An attempt sends more batches than may be kept of it.
    Crowded(u64, u64),
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
            Fault::Again(split) => {
                write!(
                    f,
                    "split {split} was begun again, and nothing is kept apart; build the river with keep_apart"
                )
            }
            Fault::Short(split, said, came) => {
                write!(f, "split {split}: {came} of {said} batches came as they were sent; run again")
            }
            Fault::Mixed(source, split) => {
                write!(f, "source {source} sent of split {split} what another source had begun; run again")
            }
            Fault::Crowded(split, most) => {
                write!(
                    f,
                    "split {split} sends more than the {most} batches that are kept of one; make splits smaller"
                )
            }
            Fault::Missing(split) => write!(f, "split {split} was never whole; run it again before the end"),
        }
    }
}

/// Numbers that came, in any order; those from 0 on without a gap cost nothing.
#[derive(Debug, Clone, Default)]
struct Numbers {
    upto: u64,
    beyond: BTreeSet<u64>,
}

impl Numbers {
    /// False if it came before.
    fn insert(&mut self, number: u64) -> bool {
        if number < self.upto || !self.beyond.insert(number) {
            return false;
        }
        while self.beyond.remove(&self.upto) {
            self.upto += 1;
        }
        true
    }

    fn has(&self, number: u64) -> bool {
        number < self.upto || self.beyond.contains(&number)
    }

    fn count(&self) -> u64 {
        self.upto + self.beyond.len() as u64
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
    fn add(&mut self, count: u64, head: &Head) {
        // What a peer says may be anything; wrong sums are no panic.
        self.count = self.count.wrapping_add(count);
        self.records = self.records.wrapping_add(head.records);
        self.bytes = self.bytes.wrapping_add(head.bytes);
        self.checksum = self.checksum.wrapping_add(head.checksum);
    }

    fn said(head: &Head) -> Sums {
        Sums { count: head.sequence, records: head.records, bytes: head.bytes, checksum: head.checksum }
    }
}

#[derive(Debug, Default)]
struct Lane {
    came: Numbers,
    sums: Sums,
    said: Option<Sums>,
    given: u64,
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Coming,
    Whole,
    Wrong,
}

#[derive(Debug)]
struct Attempt {
    source: usize,
    lanes: BTreeMap<u32, Lane>,
    /// Lanes that are all here, and what their ends said.
    whole: u64,
    ends: Sums,
    close: Option<Sums>,
    wrong: bool,
    held: u64,
}

impl Attempt {
    fn of(source: usize) -> Attempt {
        let (lanes, ends) = (BTreeMap::new(), Sums::default());
        Attempt { source, lanes, whole: 0, ends, close: None, wrong: false, held: 0 }
    }

    /// Takes the head of a batch; false if it came before.
    fn batch(&mut self, head: &Head) -> bool {
        let lane = self.lanes.entry(head.lane).or_default();
        if !lane.came.insert(head.sequence) {
            return false;
        }
        lane.sums.add(1, head);
        self.held += 1;
        self.compare(head.lane);
        true
    }

    fn end(&mut self, head: &Head) {
        let lane = self.lanes.entry(head.lane).or_default();
        if lane.said.is_none() {
            lane.said = Some(Sums::said(head));
            self.ends.add(1, head);
            self.compare(head.lane);
        }
    }

    fn compare(&mut self, lane: u32) {
        let lane = &self.lanes[&lane];
        match lane.said {
            Some(said) if said == lane.sums => self.whole += 1,
            Some(said) if lane.came.count() >= said.count => self.wrong = true,
            _ => {}
        }
    }

    fn standing(&self, in_order: bool) -> Standing {
        let Some(close) = self.close else { return Standing::Coming };
        let all_ended = self.ends.count == close.count;
        let is_whole = all_ended && self.whole == close.count && self.lanes.len() as u64 == close.count;
        match () {
            () if is_whole && self.ends == close && !self.wrong => Standing::Whole,
            () if is_whole || self.wrong || in_order => Standing::Wrong,
            () => Standing::Coming,
        }
    }

    fn batches(&self) -> (u64, u64) {
        let said = |lane: &Lane| lane.said.map_or(0, |said| said.count);
        let all = self.lanes.values().map(said).fold(0, u64::saturating_add);
        (all, self.lanes.values().map(|lane| lane.came.count()).sum())
    }
}

#[derive(Debug, Default)]
struct Split {
    attempts: BTreeMap<u32, Attempt>,
    void: BTreeSet<u32>,
}

#[derive(Debug, Clone, Default)]
struct Source {
    epoch: u32,
    begun: bool,
    /// Credits that it was given in this epoch, and the batches that came for them.
    promised: u64,
    used: Numbers,
    /// Buffers that hold batches of it, those given out included.
    holding: u64,
    finished: Option<u64>,
    lost: bool,
}

impl Source {
    fn is_sending(&self) -> bool {
        self.begun && !self.lost && self.finished.is_none()
    }

    /// Credits that it has not used.
    fn granted(&self) -> u64 {
        self.promised - self.used.count()
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
    /// Splits that are not given out whole.
    splits: BTreeMap<u64, Split>,
    proved: Numbers,
    /// The split whose turn it is, where there is an order.
    turn: u64,
    over: bool,
}

impl Core {
    /// Of an outlet that has met nobody yet.
    pub fn new(rules: Rules) -> Core {
        assert!(
            !(rules.keeps && rules.ordered),
            "what is proved and waits for its turn could fill all buffers"
        );
        assert!(rules.exclusive > 0, "without a credit of its own a source may wait for ever");
        // The first epoch begins by itself, with what every source has for itself.
        let source = Source { begun: true, promised: rules.exclusive, ..Source::default() };
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
            if matches!(event, Event::Came(_, Head { kind: Kind::Batch, .. })) {
                effects.push(Effect::Drop);
            }
            return effects;
        }
        let outcome = match event {
            Event::Came(source, head) => self.came(source, &head, &mut effects),
            Event::Freed(source) => {
                self.sources[source].holding -= 1;
                Ok(())
            }
            Event::Fence(source, epoch) => {
                self.fence(source, epoch, &mut effects);
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

    fn came(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        if head.river != self.rules.river {
            return Err(Fault::Foreign(head.river));
        }
        if head.kind == Kind::Begin {
            self.fence(source, head.epoch, effects);
            self.sources[source].begun |= head.epoch == self.sources[source].epoch;
            return Ok(());
        }
        let from = &mut self.sources[source];
        if from.lost || head.epoch != from.epoch {
            effects.extend((head.kind == Kind::Batch).then_some(Effect::Drop));
            return Ok(());
        }
        match head.kind {
            Kind::Batch => self.batch(source, head, effects)?,
            Kind::End | Kind::Close => self.mark(source, head, effects)?,
            Kind::Finish => from.finished = Some(head.split),
            Kind::Lost => {
                if !self.rules.keeps {
                    return Err(Fault::Lost(source));
                }
                from.lost = true;
                self.forget(source, effects);
            }
            Kind::Begin | Kind::Credit | Kind::Proved | Kind::Refused | Kind::Gone => {}
        }
        Ok(())
    }

    /// The attempt that a message is about, unless it counts for nothing.
    fn attempt(&mut self, source: usize, head: &Head) -> Result<Option<&mut Attempt>, Fault> {
        if self.proved.has(head.split) {
            return Ok(None);
        }
        let split = self.splits.entry(head.split).or_default();
        if split.void.contains(&head.attempt) {
            return Ok(None);
        }
        if !self.rules.keeps && split.attempts.keys().any(|&other| other != head.attempt) {
            return Err(Fault::Again(head.split));
        }
        let attempt = split.attempts.entry(head.attempt).or_insert_with(|| Attempt::of(source));
        if attempt.source != source {
            return Err(Fault::Mixed(source, head.split));
        }
        Ok(Some(attempt))
    }

    fn batch(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let Rules { keeps, exclusive, .. } = self.rules;
        let from = &mut self.sources[source];
        if head.serial >= from.promised {
            return Err(Fault::NoCredit(source));
        }
        let is_new = from.used.insert(head.serial);
        let attempt = if is_new { self.attempt(source, head)? } else { None };
        let Some(attempt) = attempt else {
            effects.push(Effect::Drop);
            return Ok(());
        };
        if !attempt.batch(head) {
            effects.push(Effect::Drop);
            return Ok(());
        }
        let held = attempt.held;
        self.sources[source].holding += 1;
        effects.push(Effect::Keep);
        if keeps && held > exclusive {
            return Err(Fault::Crowded(head.split, exclusive));
        }
        self.settle(head, effects)
    }

    fn mark(&mut self, source: usize, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let Some(attempt) = self.attempt(source, head)? else {
            // Whoever runs a split again that is proved here has only to hear so.
            if self.rules.keeps && head.kind == Kind::Close && self.proved.has(head.split) {
                effects.push(Effect::Say(source, self.reply(source, head, Kind::Proved)));
            }
            return Ok(());
        };
        match head.kind {
            Kind::End => attempt.end(head),
            _ => attempt.close = Some(Sums::said(head)),
        }
        self.settle(head, effects)
    }

    /// What follows for an attempt from what came of it.
    fn settle(&mut self, head: &Head, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let split = self.splits.get_mut(&head.split).expect("it was looked up");
        let attempt = &split.attempts[&head.attempt];
        let source = attempt.source;
        match attempt.standing(self.rules.in_order) {
            Standing::Coming => {}
            Standing::Wrong if !self.rules.keeps => {
                let (said, came) = attempt.batches();
                return Err(Fault::Short(head.split, said, came));
            }
            Standing::Wrong => {
                self.void(head.split, head.attempt, effects);
                effects.push(Effect::Say(source, self.reply(source, head, Kind::Refused)));
                return Ok(());
            }
            Standing::Whole => {
                self.proved.insert(head.split);
                let others: Vec<u32> =
                    split.attempts.keys().copied().filter(|&n| n != head.attempt).collect();
                others.into_iter().for_each(|other| self.void(head.split, other, effects));
                if self.rules.keeps {
                    effects.push(Effect::Say(source, self.reply(source, head, Kind::Proved)));
                }
            }
        }
        self.give(head.split, effects);
        Ok(())
    }

    fn reply(&self, source: usize, head: &Head, kind: Kind) -> Head {
        Head { epoch: self.sources[source].epoch, ..head.reply(kind) }
    }

    /// Gives out what may leave of this split, and of those whose turn comes by it.
    fn give(&mut self, first: u64, effects: &mut Vec<Effect>) {
        let mut number = first;
        loop {
            let is_proved = self.proved.has(number);
            if (self.rules.ordered && number != self.turn) || (self.rules.keeps && !is_proved) {
                return;
            }
            let Some(split) = self.splits.get_mut(&number) else { return };
            for (&attempt_number, attempt) in &mut split.attempts {
                for (&lane_number, lane) in &mut attempt.lanes {
                    for sequence in lane.given..lane.came.upto {
                        let name = (number, attempt_number, lane_number, sequence);
                        effects.push(Effect::Give(attempt.source, name));
                    }
                    attempt.held -= lane.came.upto - lane.given;
                    lane.given = lane.came.upto;
                }
            }
            if !is_proved {
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

    fn void(&mut self, split_number: u64, number: u32, effects: &mut Vec<Effect>) {
        let split = self.splits.get_mut(&split_number).expect("it is there");
        let attempt = split.attempts.remove(&number).expect("it is there");
        split.void.insert(number);
        self.sources[attempt.source].holding -= attempt.held;
        effects.push(Effect::Void(split_number, number));
    }

    /// Voids what is not proved of a source.
    fn forget(&mut self, source: usize, effects: &mut Vec<Effect>) {
        let open = self.splits.iter().filter(|(number, _)| !self.proved.has(**number));
        let of_it = open.flat_map(|(&split, attempts)| {
            let its = attempts.attempts.iter().filter(|(_, attempt)| attempt.source == source);
            its.map(move |(&number, _)| (split, number))
        });
        let of_it: Vec<(u64, u32)> = of_it.collect();
        of_it.into_iter().for_each(|(split, number)| self.void(split, number, effects));
        self.sources[source].promised = self.sources[source].used.count();
    }

    fn fence(&mut self, source: usize, epoch: u32, effects: &mut Vec<Effect>) {
        if epoch > self.sources[source].epoch {
            self.forget(source, effects);
            let from = &mut self.sources[source];
            *from = Source { epoch, holding: from.holding, ..Source::default() };
        }
    }

    /// Gives credits to sources that have few.
    fn grant(&mut self, effects: &mut Vec<Effect>) {
        let Rules { exclusive, float, river, .. } = self.rules;
        let mut floating: u64 = self.sources.iter().map(|source| source.floating(exclusive)).sum();
        for (i, source) in self.sources.iter_mut().enumerate().filter(|(_, source)| source.is_sending()) {
            let own = exclusive.saturating_sub(source.granted() + source.holding);
            let lent =
                (CREDITS_AHEAD.saturating_sub(source.granted() + own)).min(float.saturating_sub(floating));
            if own + lent > 0 {
                source.promised += own + lent;
                floating += lent;
                let head = Head { sequence: source.promised, ..Head::new(Kind::Credit, river, source.epoch) };
                effects.push(Effect::Say(i, head));
            }
        }
    }

    fn look_for_end(&mut self, effects: &mut Vec<Effect>) -> Result<(), Fault> {
        let is_over = |source: &Source| source.lost || source.finished.is_some();
        if !self.sources.iter().all(is_over) {
            return Ok(());
        }
        let splits = self.sources.iter().filter_map(|source| source.finished).max();
        let Some(splits) = splits else { return Err(Fault::Missing(self.proved.upto)) };
        if self.proved.upto < splits {
            return Err(Fault::Missing(self.proved.upto));
        }
        self.over = true;
        effects.push(Effect::End);
        Ok(())
    }
}
