//! Cores and sources in one thread, from a seed, and a network between them that loses, delays and doubles messages
//! while sources crash and stand still.
//!
//! Law: whatever happens, every outlet gives out each split once, whole, lane by lane in sequence, and in the order of
//! splits where that was promised; no more buffers are promised than there are. A river that keeps nothing apart ends
//! so too, or says that it cannot.
//! 10,000 seeds.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_base::rng::Rng;

use crate::core::{Core, Effect, Event, Fault, Name, Rules};
use crate::head::{Head, Kind};

const SEEDS: u64 = 10_000;
const STEPS_MAX: u64 = 200_000;
/// Steps without progress after which a source begins anew.
const PATIENCE: u64 = 400;
const RIVER: u64 = 7;
/// A batch is given back at some step after it was given out.
const HOLD: u64 = 12;

/// What a source does with its split.
#[derive(Debug, Clone, Default)]
struct Source {
    epoch: u32,
    now: Option<(u64, u32)>,
    /// For each outlet what is still to be said, last first.
    todo: Vec<Vec<Head>>,
    promised: Vec<u64>,
    sent: Vec<u64>,
    proved: BTreeSet<usize>,
    quiet: u64,
    dead: bool,
}

enum Parcel {
    Down(usize, usize, Head),
    Up(usize, Head),
}

struct World {
    rng: Rng,
    rules: Rules,
    cores: Vec<Core>,
    sources: Vec<Source>,
    /// On their way, each with the step at which it comes and its number.
    network: BTreeMap<(u64, u64), Parcel>,
    sent: u64,
    step: u64,
    splits: u64,
    attempts: Vec<u32>,
    waiting: BTreeSet<u64>,
    done: BTreeSet<u64>,
    given: Vec<Vec<Name>>,
    kept: Vec<BTreeSet<Name>>,
    /// Buffers to be given back: when, outlet, source.
    held: BTreeSet<(u64, u64, usize, usize)>,
    ended: Vec<bool>,
    failed: Option<Fault>,
    loses: bool,
    doubles: bool,
}

/// How many batches a split has for a lane of an outlet.
fn batches(split: u64, outlet: usize, lane: u32) -> u64 {
    Rng::new(split * 1000 + outlet as u64 * 10 + u64::from(lane)).below(4)
}

const LANES: u32 = 3;

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let (sources, outlets) = (1 + rng.below(4) as usize, 1 + rng.below(3) as usize);
        let keeps = !rng.one_in(4);
        let rules = Rules {
            river: RIVER,
            sources,
            exclusive: if keeps { 12 } else { 1 + rng.below(2) },
            float: rng.below(4),
            keeps,
            ordered: !keeps && rng.one_in(2),
            in_order: !keeps,
        };
        let splits = rng.below(12);
        let source = Source {
            promised: vec![rules.exclusive; outlets],
            sent: vec![0; outlets],
            todo: vec![Vec::new(); outlets],
            ..Source::default()
        };
        World {
            rules,
            cores: (0..outlets).map(|_| Core::new(rules)).collect(),
            sources: vec![source; sources],
            network: BTreeMap::new(),
            sent: 0,
            step: 0,
            splits,
            attempts: vec![0; splits as usize],
            waiting: (0..splits).collect(),
            done: BTreeSet::new(),
            given: vec![Vec::new(); outlets],
            kept: vec![BTreeSet::new(); outlets],
            held: BTreeSet::new(),
            ended: vec![false; outlets],
            failed: None,
            loses: keeps && rng.one_in(2),
            doubles: rng.one_in(2),
            rng,
        }
    }

    fn post(&mut self, parcel: impl Fn() -> Parcel, may_fail: bool) {
        if may_fail && self.loses && self.rng.one_in(50) {
            return;
        }
        let copies = if may_fail && self.doubles && self.rng.one_in(20) { 2 } else { 1 };
        for _ in 0..copies {
            self.sent += 1;
            // Without keeping apart, the network keeps the order.
            let delay = if self.rules.keeps { 1 + self.rng.below(30) } else { 5 };
            self.network.insert((self.step + delay, self.sent), parcel());
        }
    }

    fn say_to_all(&mut self, source: usize, kind: Kind) {
        let head = Head { split: self.splits, ..Head::new(kind, RIVER, self.sources[source].epoch) };
        (0..self.cores.len()).for_each(|outlet| self.post(|| Parcel::Down(source, outlet, head), true));
    }

    fn messages(&self, source: usize, split: u64, attempt: u32, outlet: usize) -> Vec<Head> {
        let of = |kind| Head { split, attempt, ..Head::new(kind, RIVER, self.sources[source].epoch) };
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

    fn source_acts(&mut self, i: usize) {
        if self.sources[i].dead {
            return;
        }
        self.sources[i].quiet += 1;
        if self.sources[i].quiet > PATIENCE && self.loses {
            return self.restart(i);
        }
        let Some((split, _)) = self.sources[i].now else { return self.take_a_split(i) };
        let is_over = match self.rules.keeps {
            true => self.sources[i].proved.len() == self.cores.len(),
            false => self.sources[i].todo.iter().all(Vec::is_empty),
        };
        if is_over {
            self.done.insert(split);
            self.sources[i].now = None;
            return;
        }
        let outlet = self.rng.below(self.cores.len() as u64) as usize;
        let source = &mut self.sources[i];
        let Some(mut next) = source.todo[outlet].last().copied() else { return };
        if next.kind == Kind::Batch {
            if source.sent[outlet] >= source.promised[outlet] {
                return;
            }
            next.serial = source.sent[outlet];
            source.sent[outlet] += 1;
        }
        source.todo[outlet].pop();
        source.quiet = 0;
        self.post(|| Parcel::Down(i, outlet, next), true);
    }

    fn take_a_split(&mut self, i: usize) {
        // In order, so that the split whose turn it is always has somebody who sends it.
        if let Some(split) = self.waiting.pop_first() {
            let attempt = self.attempts[split as usize];
            self.attempts[split as usize] += 1;
            let todo = (0..self.cores.len()).map(|outlet| self.messages(i, split, attempt, outlet)).collect();
            let source = &mut self.sources[i];
            source.now = Some((split, attempt));
            source.todo = todo;
            source.proved.clear();
            source.quiet = 0;
        } else if self.done.len() as u64 == self.splits && self.step.is_multiple_of(64) {
            // Said until it was heard.
            self.say_to_all(i, Kind::Finish);
        }
    }

    fn restart(&mut self, i: usize) {
        let source = &mut self.sources[i];
        source.epoch += 1;
        source.quiet = 0;
        source.promised.fill(0);
        source.sent.fill(0);
        self.waiting.extend(source.now.take().map(|(split, _)| split));
        self.say_to_all(i, Kind::Begin);
    }

    /// A source dies, and the outlets are told: its epoch is over.
    fn crash(&mut self, i: usize) {
        let alive = self.sources.iter().filter(|source| !source.dead).count();
        if alive < 2 || self.done.len() as u64 == self.splits || self.sources[i].dead {
            return;
        }
        self.sources[i].dead = true;
        let now = self.sources[i].now.take();
        self.waiting.extend(now.map(|(split, _)| split));
        let epoch = self.sources[i].epoch + 1000;
        for outlet in 0..self.cores.len() {
            self.tell(outlet, Event::Fence(i, epoch), None);
            self.tell(outlet, Event::Came(i, Head::new(Kind::Lost, RIVER, epoch)), None);
        }
    }

    fn tell(&mut self, outlet: usize, event: Event, came: Option<Head>) {
        for effect in self.cores[outlet].apply(event) {
            match effect {
                Effect::Keep => {
                    let head = came.expect("a batch came");
                    let name = (head.split, head.attempt, head.lane, head.sequence);
                    assert!(self.kept[outlet].insert(name), "{name:?} is kept twice");
                }
                Effect::Drop => {}
                Effect::Give(source, name) => {
                    assert!(self.kept[outlet].remove(&name), "{name:?} is given and was not kept");
                    self.given[outlet].push(name);
                    self.sent += 1;
                    let when = self.step + 1 + self.rng.below(HOLD);
                    self.held.insert((when, self.sent, outlet, source));
                }
                Effect::Void(split, attempt) => {
                    self.kept[outlet].retain(|name| (name.0, name.1) != (split, attempt));
                }
                Effect::Say(source, head) => {
                    self.post(|| Parcel::Up(source, Head { lane: outlet as u32, ..head }), true)
                }
                Effect::End => self.ended[outlet] = true,
                Effect::Fail(fault) => self.failed = Some(fault),
            }
        }
        let Rules { sources, exclusive, float, .. } = self.rules;
        assert!(self.cores[outlet].buffers() <= sources as u64 * exclusive + float);
    }

    fn arrive(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Down(source, outlet, head) => self.tell(outlet, Event::Came(source, head), Some(head)),
            Parcel::Up(source, head) => {
                let source = &mut self.sources[source];
                let outlet = head.lane as usize;
                match head.kind {
                    Kind::Credit if head.epoch == source.epoch => {
                        source.promised[outlet] = source.promised[outlet].max(head.sequence);
                    }
                    Kind::Proved if source.now == Some((head.split, head.attempt)) => {
                        source.proved.insert(outlet);
                    }
                    _ => return,
                }
                source.quiet = 0;
            }
        }
    }

    fn run(&mut self) {
        let crashes = self.rng.one_in(2);
        while self.step < STEPS_MAX && self.failed.is_none() && self.ended.contains(&false) {
            self.step += 1;
            while let Some(first) = self.network.first_entry().filter(|first| first.key().0 <= self.step) {
                let parcel = first.remove();
                self.arrive(parcel);
            }
            while let Some(&(when, _, outlet, source)) = self.held.first().filter(|held| held.0 <= self.step)
            {
                let first = self.held.pop_first();
                debug_assert_eq!(first.map(|held| held.0), Some(when));
                self.tell(outlet, Event::Freed(source), None);
            }
            let i = self.rng.below(self.sources.len() as u64) as usize;
            self.source_acts(i);
            if crashes && self.rng.one_in(300) {
                self.crash(i);
            }
        }
    }

    fn judge(&self, seed: u64) {
        let rules = self.rules;
        if let Some(fault) = self.failed {
            assert!(!rules.keeps, "seed {seed}: {fault}");
            assert!(matches!(fault, Fault::Lost(_)), "seed {seed}: {fault}");
            return;
        }
        assert!(!self.ended.contains(&false), "seed {seed} stands still: {rules:?}");
        for (outlet, given) in self.given.iter().enumerate() {
            let mut attempts = BTreeMap::new();
            let mut next: BTreeMap<(u64, u32), u64> = BTreeMap::new();
            for &(split, attempt, lane, sequence) in given {
                assert_eq!(*attempts.entry(split).or_insert(attempt), attempt, "seed {seed}: two attempts");
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
    }
}

#[test]
fn every_split_comes_once_whatever_the_network_and_the_sources_do() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.run();
        world.judge(seed);
    }
}

/// One outlet, one source, one split of two batches; nothing kept, messages in order.
fn alone() -> (Core, [Head; 2], Head, Head) {
    let rules = Rules {
        river: RIVER,
        sources: 1,
        exclusive: 2,
        float: 0,
        keeps: false,
        ordered: false,
        in_order: true,
    };
    let core = Core::new(rules);
    let batch = |sequence| Head {
        sequence,
        serial: sequence,
        records: 5,
        bytes: 50,
        checksum: 9,
        ..Head::new(Kind::Batch, RIVER, 0)
    };
    let end = Head { kind: Kind::End, records: 10, bytes: 100, checksum: 18, ..batch(2) };
    (core, [batch(0), batch(1)], end, Head { kind: Kind::Close, sequence: 1, ..end })
}

/// What follows from the last of some messages, credits aside.
fn last(core: &mut Core, heads: &[Head]) -> Option<Effect> {
    let effects = heads.iter().map(|head| core.apply(Event::Came(0, *head))).last()?;
    effects.into_iter().rfind(|effect| !matches!(effect, Effect::Say(_, Head { kind: Kind::Credit, .. })))
}

#[test]
fn what_is_lost_short_or_without_a_credit_is_found_at_the_close() {
    let (mut core, [a, b], end, close) = alone();
    let finish = Head { split: 1, ..Head::new(Kind::Finish, RIVER, 0) };
    assert_eq!(last(&mut core, &[a, b, end, close, finish]), Some(Effect::End));
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, end, close]), Some(Effect::Fail(Fault::Short(0, 2, 1))));
    for changed in [Head { records: 4, ..b }, Head { bytes: 49, ..b }, Head { checksum: 8, ..b }] {
        let (mut core, ..) = alone();
        assert_eq!(last(&mut core, &[a, changed, end, close]), Some(Effect::Fail(Fault::Short(0, 2, 2))));
    }
    let (mut core, ..) = alone();
    assert_eq!(
        last(&mut core, &[a, b, close]),
        Some(Effect::Fail(Fault::Short(0, 0, 2))),
        "an end is missing"
    );
    let (mut core, ..) = alone();
    assert_eq!(
        last(&mut core, &[a, b, Head { sequence: 2, serial: 2, ..b }]),
        Some(Effect::Fail(Fault::NoCredit(0)))
    );
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, Head { attempt: 1, ..b }]), Some(Effect::Fail(Fault::Again(0))));
    let (mut core, ..) = alone();
    let finish = Head { split: 2, ..Head::new(Kind::Finish, RIVER, 0) };
    assert_eq!(last(&mut core, &[a, b, end, close, finish]), Some(Effect::Fail(Fault::Missing(1))));
    let (mut core, ..) = alone();
    assert_eq!(last(&mut core, &[a, a]), Some(Effect::Drop), "a batch that comes twice counts once");
}
