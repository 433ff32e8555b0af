//! Work on records: a builder, and the calls that run it here or on a cluster.

use std::path::PathBuf;

use thalweg_api::{ClusterPlan, Detached, Plan, Receipt, Work};
use thalweg_base::units::Size;
use thalweg_engine::{
    Asked, Endpoint, JoinKind, Layout, PartitionPick, Progress, Result, RightSide, WorkOptions,
};
use thalweg_job::Cluster;
use thalweg_record::KeyPart;

/// Work on records: to sort, shuffle, merge, join or partition them, on this machine or on the nodes of a cluster.
///
/// Records are lines, and the key is the whole record, until something else is asked for. Files are named as for the
/// command: see [`Endpoint`].
///
/// ```no_run
/// use thalweg::{Progress, Task};
///
/// # fn main() -> thalweg::Result<()> {
/// let receipt = Task::sort(["records"], "sorted").record(100).key(0, 10).run(&Progress::default())?;
/// println!("{} records in {:.2} s", receipt.output.records, receipt.seconds);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Task {
    /// What is done, and how.
    pub options: WorkOptions,
    /// Nodes inside this process that do it together: each reads a share of the inputs, and writes a range of the keys or
    /// some of the parts. With 1, or none given, this process does it as one.
    pub nodes: Option<usize>,
    /// Where, if not on this machine.
    pub cluster: Option<Cluster>,
}

/// What a task will do and how long it will take.
#[derive(Debug, Clone)]
pub enum TaskPlan {
    /// On this machine.
    Machine(Box<Plan>),
    /// On the nodes of a cluster.
    Cluster(ClusterPlan),
}

impl Task {
    /// Some work, from inputs to an output.
    pub fn new<E: Into<Endpoint>>(
        work: Work,
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
    ) -> Task {
        let inputs = inputs.into_iter().map(Into::into).collect();
        Task {
            options: WorkOptions::new(work, inputs, output.into(), Layout::Lines),
            nodes: None,
            cluster: None,
        }
    }

    /// Puts the records in order of their keys; those with equal keys stay in the order of the inputs.
    pub fn sort<E: Into<Endpoint>>(inputs: impl IntoIterator<Item = E>, output: impl Into<Endpoint>) -> Task {
        Task::new(Work::Sort, inputs, output)
    }

    /// Puts the records in random order, which is the same for the same seed and inputs.
    pub fn shuffle<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
        seed: u64,
    ) -> Task {
        Task::new(Work::Shuffle(seed), inputs, output)
    }

    /// Merges inputs that are in order.
    pub fn merge<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
    ) -> Task {
        Task::new(Work::Merge, inputs, output)
    }

    /// Joins two inputs by keys, of which [`Task::key`] is that of the left side, and [`Task::right_key`] that of the right
    /// side if it is another.
    pub fn join(
        left: impl Into<Endpoint>,
        right: impl Into<Endpoint>,
        output: impl Into<Endpoint>,
        kind: JoinKind,
    ) -> Task {
        let mut task = Task::new(Work::Join, [left.into()], output);
        task.options.right = Some(RightSide {
            inputs: vec![right.into()],
            layout: Layout::Lines,
            keys: Vec::new(),
            kind,
            between: b"\t".to_vec(),
        });
        task
    }

    /// Deals the records among so many files; the output is a path with `{}` where the number of a part goes.
    pub fn partition<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
        pick: PartitionPick,
        parts: usize,
    ) -> Task {
        Task::new(Work::Partition { pick, parts, split_keys: false }, inputs, output)
    }

    /// Records have so many bytes; of a join, those of both sides.
    pub fn record(self, bytes: u32) -> Task {
        self.layout(Layout::Fixed(bytes))
    }

    /// Records begin with their length; of a join, those of both sides.
    pub fn prefixed(self) -> Task {
        self.layout(Layout::Prefixed)
    }

    fn layout(mut self, layout: Layout) -> Task {
        self.options.layout = layout;
        self.options.right.iter_mut().for_each(|right| right.layout = layout);
        self
    }

    /// Records of the right side of a join have so many bytes.
    pub fn right_record(mut self, bytes: u32) -> Task {
        self.options.right.iter_mut().for_each(|right| right.layout = Layout::Fixed(bytes));
        self
    }

    /// The next part of the key: so many bytes from this one on. Of a join, for both sides.
    pub fn key(mut self, offset: u32, length: u32) -> Task {
        let part = KeyPart { offset, length, descending: false };
        self.options.keys.push(part);
        self.options.right.iter_mut().for_each(|right| right.keys.push(part));
        self
    }

    /// The key of the right side of a join, if it lies elsewhere there.
    pub fn right_key(mut self, keys: &[KeyPart]) -> Task {
        self.options.right.iter_mut().for_each(|right| right.keys = keys.to_vec());
        self
    }

    /// Memory, of the process or of each node; half of what is available if nothing is said.
    pub fn memory(mut self, bytes: u64) -> Task {
        self.options.memory = Some(Size::Bytes(bytes));
        self
    }

    /// One more directory for what does not fit in memory; that of the output if none is named.
    pub fn scratch(mut self, directory: impl Into<PathBuf>) -> Task {
        self.options.scratch.push(directory.into());
        self
    }

    /// Threads that work side by side; one for each core if nothing is said.
    pub fn threads(mut self, threads: usize) -> Task {
        self.options.threads = Some(threads);
        self
    }

    /// Of records with equal keys only the first is kept.
    pub fn unique(mut self) -> Task {
        self.options.unique = true;
        self
    }

    /// Goes on from what an earlier run of the same sort left.
    pub fn resume(mut self) -> Task {
        self.options.resume = true;
        self
    }

    /// So many nodes inside this process do it. The output is that of one.
    pub fn nodes(mut self, nodes: usize) -> Task {
        self.nodes = Some(nodes);
        self
    }

    /// The nodes of this cluster do it, not this machine.
    pub fn on(mut self, cluster: Cluster) -> Task {
        self.cluster = Some(cluster);
        self
    }

    /// Does it. The receipt proves what was done: out = in, or what else the verb promises.
    ///
    /// # Errors
    /// [`Error::is_wrong`](crate::Error::is_wrong) says whether the data is wrong or it could not be done. No output has its
    /// name then.
    pub fn run(&self, progress: &Progress) -> Result<Receipt> {
        match self.cluster()? {
            None => match self.nodes {
                Some(nodes @ 2..) => thalweg_job::run_in_process(&self.options, nodes, progress),
                _ => thalweg_engine::run(&self.options, progress),
            },
            Some(cluster) => thalweg_job::run(cluster, &self.options, progress),
        }
    }

    /// Says what a sort will do, and how long that takes. Runs nothing.
    pub fn plan(&self) -> Result<TaskPlan> {
        match self.cluster()? {
            None => thalweg_engine::plan(&self.options).map(|plan| TaskPlan::Machine(Box::new(plan))),
            Some(cluster) => thalweg_job::plan(cluster, &self.options).map(TaskPlan::Cluster),
        }
    }

    /// Has a node of the cluster coordinate it, and does not wait for its end.
    pub fn detach(&self) -> Result<Detached> {
        match self.cluster()? {
            None => Err(Asked::DetachedHere.into()),
            Some(cluster) => thalweg_job::detach(cluster, &self.options),
        }
    }

    /// The cluster, which has nodes of its own.
    fn cluster(&self) -> Result<Option<&Cluster>> {
        match (&self.cluster, self.nodes) {
            (Some(_), Some(_)) => Err(Asked::NodesOfCluster.into()),
            (cluster, _) => Ok(cluster.as_ref()),
        }
    }
}
