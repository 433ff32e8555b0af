//! What a node puts into a river: its inputs, and how they are sampled, dealt and fed.
//!
//! Invariant: pages have the same size on every node, so that all nodes have the same splits.

use std::sync::{Arc, Mutex};

use thalweg_api::Proof;
use thalweg_block::Pool;
use thalweg_io::{InputLocation, Location, ReadFiles};
use thalweg_pump::{Inputs, Meters};
use thalweg_record::{Key, KeyPart, Layout, SplitPoint};
use thalweg_river::{Inlet, Outlet, Partitioner, RiverConfig};

use crate::lane_threads::Lanes;
use crate::verbs::partition::preprocess::Preprocess;
use crate::verbs::partition::sample::{self, Part};
use crate::verbs::partition::shape::{self, Shape};
use crate::verbs::partition::splits::{Pages, Splits};
use crate::{Asked, AskedOfCluster, BadPath, Endpoint, JobFault, Progress, Result};

/// The most bytes of the keys of a sample, which is sent as one message of at most this size.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// A node's inputs.
pub(super) struct Side {
    pub(super) inputs: Inputs,
    /// The layout of the records in them.
    pub(super) layout: Layout,
    /// The layout and the key of records in the river: with a tag in front, if they are shuffled.
    pub(super) travel: (Layout, Vec<KeyPart>),
    /// The node's index and the number of nodes, and whether the inputs are its own.
    pub(super) node: (usize, usize),
    pub(super) own: bool,
    /// Whether all nodes are in this process.
    pub(super) in_process: bool,
}

/// A node's inputs, with their memory laid out.
pub(super) struct LaidSide {
    side: Side,
    shape: Shape,
    lanes: usize,
    preprocess: Preprocess,
}

/// Opens the inputs, all of which are files, each on its file system.
pub(super) fn open(
    files_of: &dyn Fn(&Endpoint) -> Arc<dyn ReadFiles>,
    inputs: &[Endpoint],
    layout: Layout,
) -> Result<Inputs> {
    let mut files: Vec<InputLocation> = Vec::with_capacity(inputs.len());
    for endpoint in inputs {
        let path = match endpoint {
            Endpoint::Path(path) => path.as_path(),
            Endpoint::Volume(path) => path.as_path(),
            Endpoint::Standard => return Err(Asked::StreamInput.into()),
            other => return Err(AskedOfCluster::NotAFile(other.clone()).into()),
        };
        let io = &files_of(endpoint);
        let there = io.stat(path)?;
        if there.is_directory {
            return Err(BadPath::InputDirectory(path.to_path_buf()).into());
        }
        if !there.is_regular || path.as_os_str().is_empty() {
            return Err(Asked::StreamInput.into());
        }
        files.push(Location::new(io, path));
    }
    if files.is_empty() {
        return Err(Asked::StreamInput.into());
    }
    Ok(Inputs::open(&files, layout)?)
}

impl Side {
    /// Lays it out in `river_bytes` of memory, of this node or of the process, for `lanes` lanes.
    pub(super) fn lay(mut self, river_bytes: u64, lanes: usize, preprocess: Preprocess) -> Result<LaidSide> {
        let of = if self.in_process { Shape::of_process } else { Shape::of_node };
        let shape = of(river_bytes, (self.node.1, lanes), self.travel.0)?;
        self.inputs.set_page_bytes(shape.page_bytes);
        Ok(LaidSide { side: self, shape, lanes, preprocess })
    }

    fn key(&self) -> Result<Key> {
        Ok(Key::new(self.travel.0, &self.travel.1)?)
    }
}

impl LaidSide {
    pub(super) fn inputs(&self) -> &Inputs {
        &self.side.inputs
    }

    /// The layout and the key of records in the river.
    pub(super) fn travel(&self) -> (Layout, Vec<KeyPart>) {
        self.side.travel.clone()
    }

    /// Pages of its inputs, and bytes of each.
    pub(super) fn pages(&self) -> (u64, u64) {
        (self.side.inputs.pages(), self.shape.page_bytes as u64)
    }

    /// This node's part of a sample of inputs of `all_bytes` bytes, and the bytes read for it.
    pub(super) fn sample(&self, all_bytes: u64) -> Result<(Vec<SplitPoint>, u64)> {
        let Side { inputs, travel, node: (node, nodes), own, .. } = &self.side;
        let chunks = if *own { (0, 1) } else { (*node as u64, *nodes as u64) };
        let limits = (self.shape.page_bytes as u64, self.shape.sample_bytes.min(SAMPLE_BYTES_MAX));
        let part = Part { all_bytes, chunks };
        sample::sample(inputs, (travel.0, &self.side.key()?), (self.lanes, part), limits)
    }

    fn splits(&self, pages: &[u64]) -> Splits {
        let inlet = self.side.node.0;
        match self.side.own {
            true => Splits::Own { inlet, pages: pages.to_vec() },
            false => Splits::Dealt { inlet, pages: pages.to_vec() },
        }
    }

    /// Its river as this node has it. `pages` are those of each node's inputs.
    pub(super) fn river(
        &self,
        river: u64,
        pick: impl FnOnce(&Key) -> Partitioner,
        pages: &[u64],
    ) -> Result<Arc<RiverConfig>> {
        let (node, nodes) = self.side.node;
        let ours = self.side.inputs.pages();
        let dealt = match self.side.own {
            true => pages.get(node).copied().map_or(0, u128::from),
            false => pages.iter().copied().map(u128::from).sum(),
        };
        if pages.len() != nodes || dealt != u128::from(ours) {
            return Err(JobFault::Pages { pages: ours, nodes, dealt: pages.to_vec() }.into());
        }
        let key = self.side.key()?;
        let splits = self.splits(pages).count(&self.side.inputs);
        let river = self.shape.river((self.side.travel.0, &key), pick(&key), self.lanes, splits).named(river);
        Ok(river.config()?)
    }

    /// Puts this node's pages into the inlet while `drain` takes what the outlet gives, unless stopped. `pages` are the
    /// page counts of all nodes.
    pub(super) fn pump<T: Send>(
        &self,
        (inlet, outlet): (Inlet, Outlet),
        pages: &[u64],
        (meters, progress): (&Meters, &Progress),
        drain: impl FnOnce(&mut Outlet, &dyn Fn() -> bool) -> Result<Option<T>> + Send,
    ) -> Result<(Proof, T)> {
        let Side { inputs, layout, .. } = &self.side;
        let pool = Pool::new(self.shape.page_bytes, shape::READS + 1)?;
        let (layout, shape, preprocess) = (*layout, &self.shape, &self.preprocess);
        let splits = self.splits(pages);
        let pages = Pages { inputs, layout, shape, pool: &pool, meters, preprocess };
        let ends = Mutex::new((Some(inlet), Some((outlet, drain))));
        let made = Lanes::new(progress).run(2, |lanes, lane| {
            let mut ends = ends.lock().expect("no holder panics");
            if lane == 0 {
                let mut inlet = ends.0.take().expect("this lane takes it");
                drop(ends);
                let fed = pages.put_all(&mut inlet, &splits, lanes, progress);
                // Recorded before the inlet is dropped, so that the others stop with this error.
                return Ok((fed.map_err(|error| lanes.fail(error)).ok(), None));
            }
            let (mut outlet, drain) = ends.1.take().expect("this lane takes it");
            drop(ends);
            // Recorded first here too: dropping an outlet makes the inlet of its own node fail.
            let drained = drain(&mut outlet, &|| lanes.should_continue()).map_err(|error| lanes.fail(error));
            Ok((None, drained.ok().flatten()))
        })?;
        let mut made = made.into_iter();
        let (fed, drained) = (made.next().and_then(|lane| lane.0), made.next().and_then(|lane| lane.1));
        Ok((
            fed.expect("a lane that was stopped"),
            drained.expect("a participant that succeeded has drained"),
        ))
    }
}
