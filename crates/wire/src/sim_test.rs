//! Two cores and a channel between them, from a seed: frames are delayed arbitrarily, and in half of the runs a frame
//! is lost, duplicated, reordered or damaged, or the channel is cut.
//!
//! Invariant: each side receives what the other sent, in order, each block for a credit. A reliable channel carries
//! every stream to its end and leaves none behind; an unreliable one closes the link, and no wrong data is ever
//! delivered. A frozen side is noticed after the specified time.

use std::collections::{BTreeMap, VecDeque};

use thalweg_base::rng::Rng;

use crate::core::{Core, Effect, Event, Fault, Timeouts};
use crate::frame::{FrameError, Head, Kind};
use crate::hello::{Hello, HelloError, Id, Role, VERSIONS, Versions};

const SEEDS: u64 = 10_000;
const STEPS: u64 = 400;

fn hello(node: u128) -> Hello {
    let (cluster, node, role) = (Id(9), Id(node), Role::Node);
    Hello { versions: VERSIONS, cluster, node, role, block_bytes: 1 << 20, epoch: 0 }
}

/// One side, with what a link does for its core.
struct Side {
    core: Core,
    sent: u32,
    met: bool,
    /// Streams on which this side may still send, with the next offset.
    open: BTreeMap<u32, u64>,
    /// Blocks that arrived, by stream.
    filled: BTreeMap<u32, Vec<u64>>,
    /// Reserved buffers, by stream.
    buffers: BTreeMap<u32, u64>,
    closed: Option<Option<Fault>>,
}

/// A fault of the channel, once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Lose,
    Double,
    Swap,
    Damage,
    Cut,
    Freeze,
}

struct World {
    sides: [Side; 2],
    /// Frames in transit to each side.
    wires: [VecDeque<(Head, Vec<u8>)>; 2],
    put: BTreeMap<(usize, u32), Vec<u64>>,
    now_ms: u64,
    trouble: Trouble,
}

impl World {
    fn new(trouble: Trouble) -> World {
        let mut wires = [VecDeque::new(), VecDeque::new()];
        let mut side = |i: usize| {
            let far = Some((Id(2 - i as u128), hello(0).role));
            let (core, first) = Core::new(hello(i as u128 + 1), far, i == 0, Timeouts::default(), 0);
            let Effect::Send(head, payload) = first else { panic!("no hello") };
            wires[1 - i].push_back((head, payload));
            Side {
                core,
                sent: 1,
                met: false,
                open: BTreeMap::new(),
                filled: BTreeMap::new(),
                buffers: BTreeMap::new(),
                closed: None,
            }
        };
        let sides = [side(0), side(1)];
        World { sides, wires, put: BTreeMap::new(), now_ms: 0, trouble }
    }

    fn apply(&mut self, at: usize, event: Event) {
        let coming = match &event {
            Event::Block(head) => Some(*head),
            _ => None,
        };
        for effect in self.sides[at].core.apply(self.now_ms, event) {
            let side = &mut self.sides[at];
            match effect {
                Effect::Send(mut head, payload) => {
                    head.sequence = side.sent;
                    side.sent += 1;
                    self.wires[1 - at].push_back((head, payload));
                }
                Effect::HelloReceived(_) => side.met = true,
                Effect::Opened(stream) | Effect::Asked(stream, _) => {
                    assert!(side.open.insert(stream, 0).is_none(), "stream {stream} twice");
                }
                Effect::Fill(stream) => {
                    let buffers = side.buffers.get_mut(&stream).expect("a buffer was reserved");
                    *buffers = buffers.checked_sub(1).expect("a buffer is left");
                    side.filled.entry(stream).or_default().push(coming.expect("it is a block").value);
                }
                Effect::Close(fault) => side.closed = Some(fault),
                Effect::Aborted(stream, _) => {
                    side.open.remove(&stream);
                }
                Effect::Skip | Effect::Credited(_) | Effect::Ended(..) => {}
            }
        }
    }

    /// Delivers the next frame to a side, after the channel's fault.
    fn deliver(&mut self, at: usize, rng: &mut Rng, now: bool) {
        if now && self.wires[at].len() > 1 && self.sides[at].met {
            match std::mem::replace(&mut self.trouble, Trouble::None) {
                Trouble::Lose => drop(self.wires[at].pop_front()),
                Trouble::Double => {
                    let frame = self.wires[at][0].clone();
                    self.wires[at].push_front(frame);
                }
                Trouble::Swap => self.wires[at].swap(0, 1),
                Trouble::Damage => {
                    let mut bytes = self.wires[at][0].0.encode();
                    bytes[rng.below(32) as usize] ^= 1 << rng.below(8);
                    let why = Head::decode(&bytes).unwrap_err();
                    return self.apply(at, Event::Broken(why));
                }
                other => self.trouble = other,
            }
        }
        let Some((head, payload)) = self.wires[at].pop_front() else { return };
        assert_eq!(Head::decode(&head.encode()), Ok(head));
        match head.kind {
            Kind::Data => self.apply(at, Event::Block(head)),
            _ => self.apply(at, Event::Frame(head, payload)),
        }
    }

    /// An action of a side.
    fn wish(&mut self, at: usize, rng: &mut Rng) {
        let side = &mut self.sides[at];
        if !side.met || side.closed.is_some() {
            return;
        }
        let streams: Vec<u32> = side.open.keys().copied().collect();
        if streams.is_empty() || rng.one_in(20) {
            return self.apply(at, Event::Open(b"please".to_vec()));
        }
        let stream = streams[rng.below(streams.len() as u64) as usize];
        match rng.below(12) {
            0..=3 => {
                let blocks = 1 + rng.below(3);
                // Like a link: reserved buffers are counted before the core learns of them.
                *side.buffers.entry(stream).or_default() += blocks;
                self.apply(at, Event::Reserve(stream, blocks));
            }
            4..=9 => match side.core.may_put(stream) {
                Some(true) => {
                    let offset = side.open[&stream];
                    side.open.insert(stream, offset + 1);
                    self.put.entry((at, stream)).or_default().push(offset);
                    self.apply(at, Event::Put(Head::data(stream, 0, offset, b"block", true)));
                }
                Some(false) => {}
                None => drop(side.open.remove(&stream)),
            },
            10 => {
                side.open.remove(&stream);
                self.apply(at, Event::End(stream, b"done".to_vec()));
            }
            _ => {
                side.open.remove(&stream);
                self.apply(at, Event::Abort(stream, "enough".into()));
            }
        }
    }

    /// What arrived is a prefix of what was sent.
    fn is_sound(&self) {
        for at in 0..2 {
            for (stream, offsets) in &self.sides[at].filled {
                let put = &self.put[&(1 - at, *stream)];
                assert!(put.starts_with(offsets), "stream {stream}: {offsets:?} of {put:?}");
            }
        }
    }

    /// Lets both sides end their streams, and the channel drain.
    fn settle(&mut self, rng: &mut Rng) {
        for at in 0..2 {
            for stream in std::mem::take(&mut self.sides[at].open).into_keys() {
                self.apply(at, Event::End(stream, Vec::new()));
            }
        }
        while !self.wires.iter().all(VecDeque::is_empty) {
            for at in 0..2 {
                self.deliver(at, rng, false);
            }
            // Streams that were just opened end as well.
            for at in 0..2 {
                for stream in std::mem::take(&mut self.sides[at].open).into_keys() {
                    self.apply(at, Event::End(stream, Vec::new()));
                }
            }
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let troubles =
        [Trouble::Lose, Trouble::Double, Trouble::Swap, Trouble::Damage, Trouble::Cut, Trouble::Freeze];
    let trouble =
        if rng.one_in(2) { Trouble::None } else { troubles[rng.below(troubles.len() as u64) as usize] };
    let mut world = World::new(trouble);
    let when = rng.below(STEPS);
    for step in 0..STEPS {
        let at = rng.below(2) as usize;
        match rng.below(3) {
            0 => world.wish(at, &mut rng),
            _ => world.deliver(at, &mut rng, step >= when),
        }
        world.is_sound();
        if step >= when && matches!(world.trouble, Trouble::Cut | Trouble::Freeze) {
            break;
        }
    }
    let closed = |world: &World| world.sides.iter().any(|side| side.closed.is_some());
    match trouble {
        Trouble::None => {
            assert!(!closed(&world), "seed {seed}: {:?} {:?}", world.sides[0].closed, world.sides[1].closed);
            world.settle(&mut rng);
            world.is_sound();
            for side in &world.sides {
                assert_eq!((side.core.streams(), &side.closed), (0, &None), "seed {seed}");
            }
        }
        Trouble::Cut | Trouble::Freeze => {
            // Nothing more arrives: both sides notice at the specified time, and not before.
            world.wires = Default::default();
            let dead_ms = Timeouts::default().dead_ms;
            world.now_ms += dead_ms - 1;
            world.apply(0, Event::Tick);
            assert_eq!(world.sides[0].closed, None, "seed {seed}");
            world.now_ms += 1;
            world.apply(0, Event::Tick);
            assert_eq!(world.sides[0].closed, Some(Some(Fault::Silent(dead_ms))), "seed {seed}");
        }
        _ if world.trouble == Trouble::None => {
            world.settle(&mut rng);
            world.is_sound();
            // The loss of the last frame is noticed only by silence.
            let faults: Vec<Fault> =
                world.sides.iter().filter_map(|side| side.closed.clone().flatten()).collect();
            let found = faults.iter().find(|fault| !matches!(fault, Fault::Told(_)));
            let told = faults.iter().find(|fault| matches!(fault, Fault::Told(_)));
            assert_eq!(told.cloned(), found.map(|found| Fault::Told(found.to_string())), "seed {seed}");
            let fits = matches!(
                (trouble, found),
                (Trouble::Damage, Some(Fault::Frame(FrameError::Garbage)))
                    | (Trouble::Lose | Trouble::Double | Trouble::Swap, Some(Fault::Sequence(..)))
            );
            assert!(
                fits,
                "seed {seed}: {trouble:?} gave {:?} {:?}",
                world.sides[0].closed, world.sides[1].closed
            );
        }
        // The fault did not happen.
        _ => {}
    }
}

#[test]
fn links_keep_their_law_whatever_the_channel_does() {
    (0..SEEDS).for_each(run);
}

#[test]
fn a_peer_that_breaks_the_rules_is_told_apart() {
    let met = || {
        let mut world = World::new(Trouble::None);
        let mut rng = Rng::new(1);
        world.deliver(0, &mut rng, false);
        world.deliver(1, &mut rng, false);
        world
    };
    let fault = |head: Head, payload: &[u8]| {
        let mut world = met();
        world.apply(0, Event::Open(Vec::new()));
        let head = Head { sequence: 1, ..head };
        match head.kind {
            Kind::Data => world.apply(0, Event::Block(head)),
            _ => world.apply(0, Event::Frame(head, payload.to_vec())),
        }
        world.sides[0].closed.clone().flatten().expect("the link is closed")
    };
    let control = |kind, stream, value| Head::control(kind, stream, value, b"");
    assert_eq!(fault(Head::data(1, 0, 0, b"x", true), b""), Fault::Credit(1));
    assert_eq!(fault(Head::data(7, 0, 0, b"x", true), b""), Fault::Stream(Kind::Data, 7));
    assert_eq!(fault(control(Kind::Credit, 1, 1 << 40), b""), Fault::Credit(1));
    assert_eq!(fault(control(Kind::Credit, 3, 1), b""), Fault::Stream(Kind::Credit, 3));
    assert_eq!(fault(control(Kind::Open, 1, 0), b""), Fault::Stream(Kind::Open, 1), "a number of ours");
    assert_eq!(fault(control(Kind::Hello, 0, 0), b""), Fault::Order(Kind::Hello), "a second hello");
    let mut world = met();
    world.apply(0, Event::Frame(control(Kind::Ping, 0, 0), Vec::new()));
    assert_eq!(world.sides[0].closed, Some(Some(Fault::Sequence(1, 0))));

    let first = |hello: &[u8]| {
        let mut world = World::new(Trouble::None);
        world.apply(0, Event::Frame(Head::control(Kind::Hello, 0, 0, hello), hello.to_vec()));
        world.sides[0].closed.clone().flatten().expect("the link is closed")
    };
    let theirs = Versions { first: 5, last: 6 };
    let before = Hello { versions: theirs, ..hello(2) };
    assert_eq!(first(&before.encode()), Fault::Hello(HelloError::Versions { theirs, ours: VERSIONS }));
    let other = Hello { cluster: Id(8), ..hello(2) };
    assert_eq!(first(&other.encode()), Fault::Cluster(Id(8)));
    assert_eq!(first(&hello(3).encode()), Fault::Impostor(Id(3), Role::Node));
    let as_client = Hello { role: Role::Client, ..hello(2) };
    assert_eq!(
        first(&as_client.encode()),
        Fault::Impostor(Id(2), Role::Client),
        "its own id in another role"
    );
    let mut world = World::new(Trouble::None);
    world.apply(0, Event::Frame(control(Kind::Ping, 0, 0), Vec::new()));
    assert_eq!(world.sides[0].closed, Some(Some(Fault::Order(Kind::Ping))), "no hello first");
}
