//! Simulates cores and sources in one thread. Transports delay messages but keep their order; sources are slow or
//! crash. A seed determines everything.
//!
//! Invariant: every outlet gives out each split once and completely, lane by lane in sequence, and in the order of
//! splits if the river is ordered; or it reports which source was lost. Granted buffers never exceed the limit.
//! 10,000 seeds.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_base::rng::Rng;

use crate::core::{BatchId, Core, Effect, Event, Fault, Rules};
use crate::head::{Head, Kind};

const SEEDS: u64 = 10_000;
const STEPS_MAX: u64 = 200_000;
const RIVER: u64 = 7;
const LANES: u32 = 3;
/// The maximum number of steps after which a batch is freed.
const HOLD: u64 = 12;
/// The maximum delay of a message in steps, unless an earlier one is slower.
const DELAY: u64 = 30;

/// A source, which sends its splits one after the other.
#[derive(Debug, Clone)]
struct Source {
    /// For each outlet the messages that are still to be sent, the last one first.
    todo: Vec<Vec<Head>>,
    promised: Vec<u64>,
    sent: Vec<u64>,
    /// It acts once in this many steps.
    slowness: u64,
    /// Whether it has finished or crashed.
    over: bool,
}

/// From a source to an outlet, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Transport {
    Down(usize, usize),
    Up(usize, usize),
}

struct World {
    rng: Rng,
    rules: Rules,
    cores: Vec<Core>,
    sources: Vec<Source>,
    /// Messages in flight, with the step of arrival and a number.
    network: BTreeMap<(u64, u64), (Transport, Head)>,
    /// When the last message of a transport arrives.
    last: BTreeMap<Transport, u64>,
    sent: u64,
    step: u64,
    splits: u64,
    /// The next split to take.
    next: u64,
    given: Vec<Vec<BatchId>>,
    kept: Vec<BTreeSet<BatchId>>,
    /// Buffers to be freed: step, number, outlet, source.
    held: BTreeSet<(u64, u64, usize, usize)>,
    ended: Vec<bool>,
    failed: Option<Fault>,
    crashes: bool,
    crashed: BTreeSet<usize>,
}

/// The number of batches of a split for a lane of an outlet.
fn batches(split: u64, outlet: usize, lane: u32) -> u64 {
    Rng::new(split * 1000 + outlet as u64 * 10 + u64::from(lane)).below(4)
}

/// All messages of a split for an outlet, the last one first.
fn messages(split: u64, outlet: usize) -> Vec<Head> {
    let of = |kind| Head { split, ..Head::new(kind, RIVER) };
    let (mut down, mut ends) = (Vec::new(), Vec::new());
    let mut close = of(Kind::Close);
    for lane in 0..LANES {
        let mut end = Head { lane, ..of(Kind::End) };
        for sequence in 0..batches(split, outlet, lane) {
            let (records, bytes, checksum) = (2, 10 + sequence, u128::from(split * 7 + sequence));
            down.push(Head { lane, sequence, records, bytes, checksum, ..of(Kind::Batch) });
            end.sequence += 1;
            (end.records, end.bytes) = (end.records + records, end.bytes + bytes);
            end.checksum += checksum;
        }
        if end.sequence > 0 {
            ends.push(end);
            close.sequence += 1;
            (close.records, close.bytes) = (close.records + end.records, close.bytes + end.bytes);
            close.checksum += end.checksum;
        }
    }
    down.extend(ends);
    down.push(close);
    down.reverse();
    down
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let (sources, outlets) = (1 + rng.below(4) as usize, 1 + rng.below(3) as usize);
        let (exclusive, float, ordered) = (1 + rng.below(2), rng.below(4), rng.one_in(2));
        let rules = Rules { river: RIVER, sources, exclusive, float, ordered };
        let mut source = || Source {
            todo: vec![Vec::new(); outlets],
            promised: vec![rules.exclusive; outlets],
            sent: vec![0; outlets],
            slowness: if rng.one_in(4) { 40 } else { 1 },
            over: false,
        };
        World {
            rules,
            cores: (0..outlets).map(|_| Core::new(rules)).collect(),
            sources: (0..sources).map(|_| source()).collect(),
            network: BTreeMap::new(),
            last: BTreeMap::new(),
            sent: 0,
            step: 0,
            splits: rng.below(12),
            next: 0,
            given: vec![Vec::new(); outlets],
            kept: vec![BTreeSet::new(); outlets],
            held: BTreeSet::new(),
            ended: vec![false; outlets],
            failed: None,
            crashes: rng.one_in(2),
            crashed: BTreeSet::new(),
            rng,
        }
    }

    /// A transport keeps the order of messages.
    fn post(&mut self, transport: Transport, head: Head) {
        self.sent += 1;
        let last = self.last.entry(transport).or_default();
        *last = (*last).max(self.step + 1 + self.rng.below(DELAY));
        self.network.insert((*last, self.sent), (transport, head));
    }

    /// A source sends its last message to all outlets.
    fn leave(&mut self, i: usize, kind: Kind) {
        self.sources[i].over = true;
        let head = Head { split: self.splits, ..Head::new(kind, RIVER) };
        (0..self.cores.len()).for_each(|outlet| self.post(Transport::Down(i, outlet), head));
    }

    fn source_acts(&mut self, i: usize) {
        let slowness = self.sources[i].slowness;
        if self.sources[i].over || !self.rng.one_in(slowness) {
            return;
        }
        if self.sources[i].todo.iter().all(Vec::is_empty) {
            return self.take_a_split(i);
        }
        let outlet = self.rng.below(self.cores.len() as u64) as usize;
        let source = &mut self.sources[i];
        let Some(next) = source.todo[outlet].last().copied() else { return };
        if next.kind == Kind::Batch {
            if source.sent[outlet] >= source.promised[outlet] {
                return;
            }
            source.sent[outlet] += 1;
        }
        source.todo[outlet].pop();
        self.post(Transport::Down(i, outlet), next);
    }

    fn take_a_split(&mut self, i: usize) {
        // In order, so that some source always sends the next split.
        if self.next == self.splits {
            return self.leave(i, Kind::Finish);
        }
        self.sources[i].todo = (0..self.cores.len()).map(|outlet| messages(self.next, outlet)).collect();
        self.next += 1;
    }

    fn tell(&mut self, outlet: usize, event: Event, arrived: Option<Head>) {
        for effect in self.cores[outlet].apply(event) {
            match effect {
                Effect::Keep => {
                    let head = arrived.expect("a batch came");
                    let name = (head.split, head.lane, head.sequence);
                    assert!(self.kept[outlet].insert(name), "{name:?} is kept twice");
                }
                Effect::Give(source, name) => {
                    assert!(self.kept[outlet].remove(&name), "{name:?} is given and was not kept");
                    self.given[outlet].push(name);
                    self.sent += 1;
                    let when = self.step + 1 + self.rng.below(HOLD);
                    self.held.insert((when, self.sent, outlet, source));
                }
                Effect::Say(source, head) => self.post(Transport::Up(source, outlet), head),
                Effect::End => self.ended[outlet] = true,
                Effect::Fail(fault) => self.failed = Some(fault),
            }
        }
        let Rules { sources, exclusive, float, .. } = self.rules;
        assert!(self.cores[outlet].buffers() <= sources as u64 * exclusive + float);
    }

    fn run(&mut self) {
        while self.step < STEPS_MAX && self.failed.is_none() && self.ended.contains(&false) {
            self.step += 1;
            while let Some(first) = self.network.first_entry().filter(|first| first.key().0 <= self.step) {
                match first.remove() {
                    (Transport::Down(source, outlet), head) => {
                        self.tell(outlet, Event::Arrived(source, head), Some(head));
                    }
                    (Transport::Up(source, outlet), head) => {
                        self.sources[source].promised[outlet] = head.sequence
                    }
                }
            }
            while let Some(&(when, _, outlet, source)) = self.held.first().filter(|held| held.0 <= self.step)
            {
                let first = self.held.pop_first();
                debug_assert_eq!(first.map(|held| held.0), Some(when));
                self.tell(outlet, Event::Freed(source), None);
            }
            let i = self.rng.below(self.sources.len() as u64) as usize;
            self.source_acts(i);
            if self.crashes && !self.sources[i].over && self.rng.one_in(300) {
                self.crashed.insert(i);
                self.leave(i, Kind::Lost);
            }
        }
    }

    /// True if the river ended well.
    fn judge(&self, seed: u64) -> bool {
        let rules = self.rules;
        if let Some(fault) = self.failed {
            let is_told = matches!(fault, Fault::Lost(source) if self.crashed.contains(&source));
            assert!(is_told, "seed {seed}: {fault}");
            return false;
        }
        assert!(!self.ended.contains(&false), "seed {seed} stands still: {rules:?}");
        for (outlet, given) in self.given.iter().enumerate() {
            let mut next: BTreeMap<(u64, u32), u64> = BTreeMap::new();
            for &(split, lane, sequence) in given {
                let place = next.entry((split, lane)).or_default();
                assert_eq!(*place, sequence, "seed {seed}: split {split} lane {lane}");
                *place += 1;
            }
            for split in 0..self.splits {
                for lane in 0..LANES {
                    let got = next.get(&(split, lane)).copied().unwrap_or(0);
                    assert_eq!(got, batches(split, outlet, lane), "seed {seed}: split {split} lane {lane}");
                }
            }
            let in_order = given.is_sorted_by_key(|name| name.0);
            assert!(in_order || !rules.ordered, "seed {seed}: {given:?}");
        }
        true
    }
}

#[test]
fn every_split_arrives_once_despite_delays_and_crashes() {
    let mut well = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.run();
        well += u64::from(world.judge(seed));
    }
    assert!((SEEDS / 2..SEEDS).contains(&well), "{well} of {SEEDS} ended well");
}

/// One outlet, one source, one split of two batches.
fn alone() -> (Core, [Head; 2], Head, Head) {
    let core = Core::new(Rules { river: RIVER, sources: 1, exclusive: 2, float: 0, ordered: false });
    let batch =
        |sequence| Head { sequence, records: 5, bytes: 50, checksum: 9, ..Head::new(Kind::Batch, RIVER) };
    let end = Head { kind: Kind::End, records: 10, bytes: 100, checksum: 18, ..batch(2) };
    (core, [batch(0), batch(1)], end, Head { kind: Kind::Close, sequence: 1, ..end })
}

/// The last effect of some messages, ignoring credits.
fn last(core: &mut Core, heads: &[Head]) -> Option<Effect> {
    let effects = heads.iter().map(|head| core.apply(Event::Arrived(0, *head))).last()?;
    effects.into_iter().rfind(|effect| !matches!(effect, Effect::Say(_, Head { kind: Kind::Credit, .. })))
}

#[test]
fn losses_and_missing_credits_are_detected() {
    let (mut core, [a, b], end, close) = alone();
    let finish = Head { split: 1, ..Head::new(Kind::Finish, RIVER) };
    assert_eq!(last(&mut core, &[a, b, end, close, finish]), Some(Effect::End));
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, end, close]), Some(Effect::Fail(Fault::Incomplete(0, 2, 1))));
    for changed in [Head { records: 4, ..b }, Head { bytes: 49, ..b }, Head { checksum: 8, ..b }] {
        let (mut core, ..) = alone();
        assert_eq!(
            last(&mut core, &[a, changed, end, close]),
            Some(Effect::Fail(Fault::Incomplete(0, 2, 2)))
        );
    }
    let (mut core, ..) = alone();
    assert_eq!(
        last(&mut core, &[a, b, close]),
        Some(Effect::Fail(Fault::Incomplete(0, 0, 2))),
        "an end is missing"
    );
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, b, Head { sequence: 2, ..b }]), Some(Effect::Fail(Fault::NoCredit(0))));
    let (mut core, ..) = alone();
    let finish = Head { split: 2, ..finish };
    assert_eq!(last(&mut core, &[a, b, end, close, finish]), Some(Effect::Fail(Fault::Missing(1))));
}

#[test]
fn duplicates_and_reordering_are_detected_at_once() {
    let (mut core, [a, b], end, close) = alone();
    assert_eq!(last(&mut core, &[a, a]), Some(Effect::Fail(Fault::Incomplete(0, 0, 1))));
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[b]), Some(Effect::Fail(Fault::Incomplete(0, 1, 0))));
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, b, end, close]), None);
    core.apply(Event::Freed(0));
    assert_eq!(last(&mut core, &[a]), Some(Effect::Fail(Fault::DuplicateSplit(0, 0))), "the split is closed");
}
