//! A river as it is asked for, and its ends: all in one process, or each where it belongs.

use std::ops::Range;
use std::sync::Arc;

use thalweg_block::Pool;
use thalweg_record::{Key, Layout};

use crate::core::Rules;
use crate::error::{Error, Result};
use crate::head::HEAD_BYTES;
use crate::transport::{Mailbox, MemoryTransport, Transport};
use crate::{Inlet, Outlet, Partitioner, Reach, link};

/// Blocks of a pool are whole pages.
const PAGE_BYTES: usize = 4096;
/// Lanes for each outlet, if nobody says.
const LANES_PER_OUTLET: usize = 16;
/// The longest record, if nobody says.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// A river whose inlets and outlets are all in this process.
pub struct River {
    /// One for each source.
    pub inlets: Vec<Inlet>,
    /// One for each sink.
    pub outlets: Vec<Outlet>,
}

impl River {
    /// A river to be described: one inlet, one outlet, lines dealt in turn.
    pub fn builder() -> Builder {
        Builder {
            river: 0,
            inlets: 1,
            outlets: 1,
            lanes: None,
            layout: Layout::Lines,
            key: None,
            partitioner: Partitioner::RoundRobin,
            batch_bytes: 256 << 10,
            exclusive: 2,
            float: None,
            lane_queued: 4,
            queued: 16,
            ordered: false,
            checked: false,
            proved: false,
            window: None,
            splits: 0,
            record_max: RECORD_BYTES_MAX,
        }
    }
}

/// A river as it is asked for.
#[derive(Debug)]
pub struct Builder {
    river: u64,
    inlets: usize,
    outlets: usize,
    lanes: Option<usize>,
    layout: Layout,
    key: Option<Key>,
    partitioner: Partitioner,
    batch_bytes: usize,
    exclusive: u64,
    float: Option<u64>,
    lane_queued: usize,
    queued: usize,
    ordered: bool,
    checked: bool,
    proved: bool,
    window: Option<usize>,
    splits: u64,
    record_max: u64,
}

impl Builder {
    /// Its name, which every message bears: rivers that share links must have different ones.
    pub fn named(self, river: u64) -> Builder {
        Builder { river, ..self }
    }

    /// How many sources.
    pub fn inlets(self, inlets: usize) -> Builder {
        Builder { inlets, ..self }
    }

    /// How many sinks.
    pub fn outlets(self, outlets: usize) -> Builder {
        Builder { outlets, ..self }
    }

    /// How many lanes; as many as there are ranges to pick by, else 16 for each outlet if nobody says.
    pub fn lanes(self, lanes: usize) -> Builder {
        Builder { lanes: Some(lanes), ..self }
    }

    /// How records lie in what is put, and their key.
    pub fn records(self, layout: Layout, key: Key) -> Builder {
        Builder { layout, key: Some(key), ..self }
    }

    /// To which lane a record goes.
    pub fn partitioner(self, partitioner: Partitioner) -> Builder {
        Builder { partitioner, ..self }
    }

    /// Bytes of records that a batch holds at most.
    pub fn batch_bytes(self, batch_bytes: usize) -> Builder {
        Builder { batch_bytes, ..self }
    }

    /// Buffers of an outlet: so many for each source alone, and so many for whoever needs them.
    pub fn credits(self, exclusive: u64, float: u64) -> Builder {
        Builder { exclusive, float: Some(float), ..self }
    }

    /// Full batches that wait in an inlet: at most so many of one lane, and of all.
    pub fn queued(self, of_lane: usize, of_all: usize) -> Builder {
        Builder { lane_queued: of_lane, queued: of_all, ..self }
    }

    /// Splits are given out in the order of their numbers. Every source must put its own in that order.
    pub fn ordered(self) -> Builder {
        Builder { ordered: true, ..self }
    }

    /// Every batch bears a checksum, which its outlet looks at.
    pub fn checked(self) -> Builder {
        Builder { checked: true, ..self }
    }

    /// Inlets prove what is put: [`Inlet::proof`].
    pub fn proved(self) -> Builder {
        Builder { proved: true, ..self }
    }

    /// Blocks that an end has reserved for each stream of a link at once: more, and more is under way. Without this
    /// [`window`](crate::window) of the streams that it has.
    pub fn window(self, blocks: usize) -> Builder {
        Builder { window: Some(blocks), ..self }
    }

    /// How many splits there are, if that is known; else as many as the inlets put.
    pub fn splits(self, splits: u64) -> Builder {
        Builder { splits, ..self }
    }

    /// The longest record that is held whole.
    pub fn record_max(self, record_max: u64) -> Builder {
        Builder { record_max, ..self }
    }

    /// What all ends of the river share.
    pub fn config(self) -> Result<Arc<RiverConfig>> {
        let lanes = match (&self.partitioner, self.lanes) {
            (Partitioner::Range(split_points), None) => split_points.ranges(),
            (Partitioner::Among(_, ranges), None) => ranges.len(),
            (Partitioner::Copy, None) => self.outlets,
            (_, lanes) => lanes.unwrap_or(self.outlets * LANES_PER_OUTLET),
        };
        let shape = |wrong: bool, why| if wrong { Err(Error::Shape(why)) } else { Ok(()) };
        shape(self.inlets == 0 || self.outlets == 0, "a river needs an inlet and an outlet")?;
        shape(lanes == 0 || lanes > u32::MAX as usize, "a river needs at least one lane, and at most 2^32")?;
        let ranges = match &self.partitioner {
            Partitioner::Range(split_points) => split_points.ranges(),
            Partitioner::Among(_, ranges) => ranges.len(),
            _ => 0,
        };
        shape(ranges > lanes, "there are more ranges than lanes; give as many lanes as ranges")?;
        shape(
            self.batch_bytes == 0 || self.lane_queued == 0 || self.queued == 0 || self.exclusive == 0,
            "batches, credits and send queues have at least 1",
        )?;
        let (layout, whole) = (self.layout, |layout| Key::new(layout, &[]));
        let key = match self.key {
            Some(key) => key,
            None => whole(layout).map_err(|_| Error::Shape("records of 0 bytes cannot be told apart"))?,
        };
        Ok(Arc::new(RiverConfig {
            rules: Rules {
                river: self.river,
                sources: self.inlets,
                exclusive: self.exclusive,
                float: self.float.unwrap_or(2 * self.inlets as u64),
                ordered: self.ordered,
            },
            outlets: self.outlets,
            lanes,
            layout,
            key,
            partitioner: self.partitioner,
            batch_bytes: self.batch_bytes,
            lane_queued: self.lane_queued,
            queued: self.queued,
            checked: self.checked,
            proved: self.proved,
            window: self.window,
            splits: self.splits,
            record_max: self.record_max,
        }))
    }

    /// The river, all of it in this process.
    pub fn build(self) -> Result<River> {
        let config = self.config()?;
        let pool = Pool::new(config.block_bytes(), config.blocks())?;
        let mailboxes = |count: usize| -> Vec<Arc<Mailbox>> { (0..count).map(|_| Arc::default()).collect() };
        let (at_inlets, at_outlets) = (mailboxes(config.rules.sources), mailboxes(config.outlets));
        let transports = |to: &[Arc<Mailbox>], from: usize| -> Vec<Box<dyn Transport>> {
            to.iter().map(|to| Box::new(MemoryTransport { to: Arc::clone(to), from }) as _).collect()
        };
        let outlets = at_outlets
            .iter()
            .enumerate()
            .map(|(i, mail)| Outlet::new(Arc::clone(&config), transports(&at_inlets, i), Arc::clone(mail)));
        let outlets: Vec<Outlet> = outlets.collect();
        let inlets = at_inlets.iter().enumerate().map(|(i, mail)| {
            Inlet::new(Arc::clone(&config), i, pool.clone(), transports(&at_outlets, i), Arc::clone(mail))
        });
        Ok(River { inlets: inlets.collect(), outlets })
    }
}

/// The lanes that an outlet, of so many, takes of so many lanes.
pub fn lanes_of(outlet: usize, outlets: usize, lanes: usize) -> Range<usize> {
    let first = |outlet: usize| (outlet * lanes).div_ceil(outlets);
    first(outlet)..first(outlet + 1)
}

/// What all ends of a river share.
#[derive(Debug)]
pub struct RiverConfig {
    pub(crate) rules: Rules,
    pub(crate) outlets: usize,
    pub(crate) lanes: usize,
    pub(crate) layout: Layout,
    pub(crate) key: Key,
    pub(crate) partitioner: Partitioner,
    pub(crate) batch_bytes: usize,
    pub(crate) lane_queued: usize,
    pub(crate) queued: usize,
    pub(crate) checked: bool,
    pub(crate) proved: bool,
    pub(crate) window: Option<usize>,
    pub(crate) splits: u64,
    pub(crate) record_max: u64,
}

impl RiverConfig {
    /// The outlet that takes a lane: neighbours go together.
    pub(crate) fn outlet_of(&self, lane: usize) -> usize {
        lane * self.outlets / self.lanes
    }

    /// The lanes that an outlet takes.
    pub(crate) fn lanes_of(&self, outlet: usize) -> Range<usize> {
        lanes_of(outlet, self.outlets, self.lanes)
    }

    /// Bytes of a block that holds a batch and its head.
    pub fn block_bytes(&self) -> usize {
        (self.batch_bytes + HEAD_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Blocks of an inlet: an open batch for each lane, what is queued, and one that is changing hands.
    fn blocks_of_inlet(&self) -> usize {
        self.lanes + self.queued + 1
    }

    /// Buffers of an outlet.
    fn blocks_of_outlet(&self) -> usize {
        self.rules.sources * self.rules.exclusive as usize + self.rules.float as usize
    }

    /// Blocks of the whole river in one process.
    pub fn blocks(&self) -> usize {
        self.rules.sources * self.blocks_of_inlet() + self.outlets * self.blocks_of_outlet()
    }

    /// An inlet that reaches the outlets so, in their order.
    pub fn inlet_over(self: &Arc<RiverConfig>, index: usize, reaches: Vec<Reach>) -> Result<Inlet> {
        self.inlet_with(index, reaches, Arc::default(), None)
    }

    /// An outlet that reaches the inlets so, in their order.
    pub fn outlet_over(self: &Arc<RiverConfig>, reaches: Vec<Reach>) -> Result<Outlet> {
        self.outlet_with(0, reaches, Arc::default(), None)
    }

    /// The inlet and the outlet of one node of several, each of which has one of either: both of this number. They
    /// reach each other here, where neither list has more than a place for it.
    pub fn node(
        self: &Arc<RiverConfig>,
        index: usize,
        outlets: Vec<Reach>,
        inlets: Vec<Reach>,
    ) -> Result<(Inlet, Outlet)> {
        let (at_inlet, at_outlet): (Arc<Mailbox>, Arc<Mailbox>) = Default::default();
        // First what takes.
        let outlet = self.outlet_with(index, inlets, Arc::clone(&at_outlet), Some(&at_inlet))?;
        let inlet = self.inlet_with(index, outlets, at_inlet, Some(&at_outlet))?;
        Ok((inlet, outlet))
    }

    fn inlet_with(
        self: &Arc<RiverConfig>,
        index: usize,
        reaches: Vec<Reach>,
        mail: Arc<Mailbox>,
        here: Option<&Arc<Mailbox>>,
    ) -> Result<Inlet> {
        assert_eq!(reaches.len(), self.outlets, "a way to each outlet");
        // An outlet here holds blocks of the inlet's, as many as one source may have there.
        let lent = here.map_or(0, |_| self.rules.exclusive + self.rules.float) as usize;
        let pool = Pool::new(self.block_bytes(), self.blocks_of_inlet() + lent)?;
        // What comes to an inlet is marks alone.
        let transports = self.ends(reaches, &mail, (here, index), (PAGE_BYTES, 0))?;
        Ok(Inlet::new(Arc::clone(self), index, pool, transports, mail))
    }

    fn outlet_with(
        self: &Arc<RiverConfig>,
        index: usize,
        reaches: Vec<Reach>,
        mail: Arc<Mailbox>,
        here: Option<&Arc<Mailbox>>,
    ) -> Result<Outlet> {
        assert_eq!(reaches.len(), self.rules.sources, "a way to each inlet");
        let transports =
            self.ends(reaches, &mail, (here, index), (self.block_bytes(), self.blocks_of_outlet()))?;
        Ok(Outlet::new(Arc::clone(self), transports, mail))
    }

    fn ends(
        &self,
        reaches: Vec<Reach>,
        mail: &Arc<Mailbox>,
        (here, index): (Option<&Arc<Mailbox>>, usize),
        blocks: (usize, usize),
    ) -> Result<Vec<Box<dyn Transport>>> {
        let window = self.window.unwrap_or_else(|| link::window(reaches.len()));
        link::ends(reaches, mail, || transport(here, index), (self.rules.river, window), blocks)
    }
}

/// The way to the end that is here.
fn transport(here: Option<&Arc<Mailbox>>, from: usize) -> Box<dyn Transport> {
    let to = Arc::clone(here.expect("only a node has an end of the other side here"));
    Box::new(MemoryTransport { to, from })
}
