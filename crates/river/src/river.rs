//! The builder of a river, its configuration, and its ends, in one process or in several.

use std::ops::Range;
use std::sync::Arc;

use thalweg_block::Pool;
use thalweg_record::{Key, Layout};

use crate::core::Rules;
use crate::error::{Error, Result};
use crate::head::HEAD_BYTES;
use crate::transport::{Mailbox, MemoryTransport, Transport};
use crate::{Connection, Inlet, Outlet, Partitioner, link};

/// Blocks of a pool are whole pages.
const PAGE_BYTES: usize = 4096;
/// The default number of lanes for each outlet.
const LANES_PER_OUTLET: usize = 16;
/// The default maximum of a record.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// A river with all inlets and outlets in this process.
pub struct River {
    /// One for each source.
    pub inlets: Vec<Inlet>,
    /// One for each sink.
    pub outlets: Vec<Outlet>,
}

impl River {
    /// Starts with one inlet, one outlet, and lines distributed in turn.
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

/// Builds a river.
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
    /// The id in every message. Rivers that share links must have different ids.
    pub fn named(self, river: u64) -> Builder {
        Builder { river, ..self }
    }

    /// The number of inlets.
    pub fn inlets(self, inlets: usize) -> Builder {
        Builder { inlets, ..self }
    }

    /// The number of outlets.
    pub fn outlets(self, outlets: usize) -> Builder {
        Builder { outlets, ..self }
    }

    /// The number of lanes. By default one for each range of the partitioner, otherwise 16 for each outlet.
    pub fn lanes(self, lanes: usize) -> Builder {
        Builder { lanes: Some(lanes), ..self }
    }

    /// The layout of records, and their key.
    pub fn records(self, layout: Layout, key: Key) -> Builder {
        Builder { layout, key: Some(key), ..self }
    }

    /// How the lane of a record is selected.
    pub fn partitioner(self, partitioner: Partitioner) -> Builder {
        Builder { partitioner, ..self }
    }

    /// The maximum bytes of records in a batch.
    pub fn batch_bytes(self, batch_bytes: usize) -> Builder {
        Builder { batch_bytes, ..self }
    }

    /// Buffers of an outlet: `exclusive` are reserved for each source, and `float` are shared.
    pub fn credits(self, exclusive: u64, float: u64) -> Builder {
        Builder { exclusive, float: Some(float), ..self }
    }

    /// The maximum number of full batches that wait in an inlet, of one lane and of all lanes.
    pub fn queued(self, of_lane: usize, of_all: usize) -> Builder {
        Builder { lane_queued: of_lane, queued: of_all, ..self }
    }

    /// Gives out splits in the order of their numbers. Every source must put its splits in that order.
    pub fn ordered(self) -> Builder {
        Builder { ordered: true, ..self }
    }

    /// Puts a checksum on every batch, which its outlet verifies.
    pub fn checked(self) -> Builder {
        Builder { checked: true, ..self }
    }

    /// Makes inlets prove what is put; see [`Inlet::proof`].
    pub fn proved(self) -> Builder {
        Builder { proved: true, ..self }
    }

    /// The number of blocks that an end reserves for each stream of a link: with more blocks, more data can be in
    /// flight. The default is [`window`](crate::window).
    pub fn window(self, blocks: usize) -> Builder {
        Builder { window: Some(blocks), ..self }
    }

    /// The number of splits, if it is known.
    pub fn splits(self, splits: u64) -> Builder {
        Builder { splits, ..self }
    }

    /// The longest record that may cross blocks.
    pub fn record_max(self, record_max: u64) -> Builder {
        Builder { record_max, ..self }
    }

    /// The configuration that all ends of the river share.
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

    /// Makes a river in this process.
    pub fn build(self) -> Result<River> {
        self.config()?.build()
    }
}

/// The lanes of an outlet. Neighbouring lanes belong to one outlet.
pub fn lanes_of(outlet: usize, outlets: usize, lanes: usize) -> Range<usize> {
    let first = |outlet: usize| (outlet * lanes).div_ceil(outlets);
    first(outlet)..first(outlet + 1)
}

/// The configuration that all ends of a river share.
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
    /// The outlet of a lane.
    pub(crate) fn outlet_of(&self, lane: usize) -> usize {
        lane * self.outlets / self.lanes
    }

    /// The lanes of an outlet.
    pub(crate) fn lanes_of(&self, outlet: usize) -> Range<usize> {
        lanes_of(outlet, self.outlets, self.lanes)
    }

    /// Bytes of a block with a batch and its head.
    pub fn block_bytes(&self) -> usize {
        (self.batch_bytes + HEAD_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Blocks of an inlet: an open batch for each lane, the send queue, and one that is being passed on.
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

    /// All ends of the river, in this process.
    pub fn build(self: &Arc<RiverConfig>) -> Result<River> {
        let pool = Pool::new(self.block_bytes(), self.blocks())?;
        let mailboxes = |count: usize| -> Vec<Arc<Mailbox>> { (0..count).map(|_| Arc::default()).collect() };
        let (at_inlets, at_outlets) = (mailboxes(self.rules.sources), mailboxes(self.outlets));
        let transports = |to: &[Arc<Mailbox>], from: usize| -> Vec<Box<dyn Transport>> {
            to.iter().map(|to| Box::new(MemoryTransport { to: Arc::clone(to), from }) as _).collect()
        };
        let outlets = at_outlets
            .iter()
            .enumerate()
            .map(|(i, mail)| Outlet::new(Arc::clone(self), transports(&at_inlets, i), Arc::clone(mail)));
        let outlets: Vec<Outlet> = outlets.collect();
        let inlets = at_inlets.iter().enumerate().map(|(i, mail)| {
            Inlet::new(Arc::clone(self), i, pool.clone(), transports(&at_outlets, i), Arc::clone(mail))
        });
        Ok(River { inlets: inlets.collect(), outlets })
    }

    /// An inlet with these connections to the outlets, in order.
    pub fn inlet_over(self: &Arc<RiverConfig>, index: usize, connections: Vec<Connection>) -> Result<Inlet> {
        self.inlet_with(index, connections, Arc::default(), None)
    }

    /// An outlet with these connections to the inlets, in order.
    pub fn outlet_over(self: &Arc<RiverConfig>, connections: Vec<Connection>) -> Result<Outlet> {
        self.outlet_with(0, connections, Arc::default(), None)
    }

    /// The inlet and the outlet of one node; both have this number. They reach each other in memory, so the lists
    /// only have a placeholder for that connection.
    pub fn node(
        self: &Arc<RiverConfig>,
        index: usize,
        outlets: Vec<Connection>,
        inlets: Vec<Connection>,
    ) -> Result<(Inlet, Outlet)> {
        let (at_inlet, at_outlet): (Arc<Mailbox>, Arc<Mailbox>) = Default::default();
        // The receiver comes first.
        let outlet = self.outlet_with(index, inlets, Arc::clone(&at_outlet), Some(&at_inlet))?;
        let inlet = self.inlet_with(index, outlets, at_inlet, Some(&at_outlet))?;
        Ok((inlet, outlet))
    }

    fn inlet_with(
        self: &Arc<RiverConfig>,
        index: usize,
        connections: Vec<Connection>,
        mail: Arc<Mailbox>,
        here: Option<&Arc<Mailbox>>,
    ) -> Result<Inlet> {
        assert_eq!(connections.len(), self.outlets, "a connection to each outlet");
        // The local outlet holds blocks of this inlet's pool, at most as many as one source may have there.
        let extra = here.map_or(0, |_| self.rules.exclusive + self.rules.float) as usize;
        let pool = Pool::new(self.block_bytes(), self.blocks_of_inlet() + extra)?;
        // An inlet receives only control messages.
        let transports = self.ends(connections, &mail, (here, index), (PAGE_BYTES, 0))?;
        Ok(Inlet::new(Arc::clone(self), index, pool, transports, mail))
    }

    fn outlet_with(
        self: &Arc<RiverConfig>,
        index: usize,
        connections: Vec<Connection>,
        mail: Arc<Mailbox>,
        here: Option<&Arc<Mailbox>>,
    ) -> Result<Outlet> {
        assert_eq!(connections.len(), self.rules.sources, "a connection to each inlet");
        let transports =
            self.ends(connections, &mail, (here, index), (self.block_bytes(), self.blocks_of_outlet()))?;
        Ok(Outlet::new(Arc::clone(self), transports, mail))
    }

    fn ends(
        &self,
        connections: Vec<Connection>,
        mail: &Arc<Mailbox>,
        (here, index): (Option<&Arc<Mailbox>>, usize),
        blocks: (usize, usize),
    ) -> Result<Vec<Box<dyn Transport>>> {
        let window = self.window.unwrap_or_else(|| link::window(connections.len()));
        link::ends(connections, mail, || transport(here, index), (self.rules.river, window), blocks)
    }
}

/// The transport to the local end.
fn transport(here: Option<&Arc<Mailbox>>, from: usize) -> Box<dyn Transport> {
    let to = Arc::clone(here.expect("only a node has an end of the other side here"));
    Box::new(MemoryTransport { to, from })
}
