//! Work on records: a builder, and the calls that run it here or on a cluster.

use std::convert::Infallible;
use std::path::PathBuf;

use thalweg_api::{ClusterPlan, Detached, Plan, Receipt, TableLoaded, Work};
use thalweg_base::units::Size;
use thalweg_engine::{
    Asked, BadPath, Endpoint, JoinKind, Layout, PartitionPick, Progress, Result, RightSide, WorkOptions,
};
use thalweg_io::{hidden, small};
use thalweg_job::Cluster;
use thalweg_record::KeyPart;
use thalweg_table::cluster::{Duplicates, Error};

use crate::table_ends::{Ends, form};

/// Work on records: to sort, shuffle, merge, join or partition them, on this machine or on the nodes of a cluster.
///
/// By default records are lines, and the key is the whole record. Files are named as for the command: see
/// [`Endpoint`].
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
    /// What to do, and how.
    pub options: WorkOptions,
    /// The number of nodes inside this process that share the work: each reads a part of the inputs, and writes a range
    /// of the keys or some of the parts. With 1 or `None`, this process works without nodes.
    pub nodes: Option<usize>,
    /// The cluster that does the work; `None` for this machine.
    pub cluster: Option<Cluster>,
}

/// A file that is removed in the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It is not there if the work failed.
        let _ = small::remove(&self.0);
    }
}

/// What a task will do, and how long it will take.
#[derive(Debug, Clone)]
pub enum TaskPlan {
    /// On this machine.
    Machine(Box<Plan>),
    /// On the nodes of a cluster.
    Cluster(ClusterPlan),
}

impl Task {
    /// A task with this work, from the inputs to the output.
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

    /// Sorts the records by their keys; records with equal keys stay in the order of the inputs.
    pub fn sort<E: Into<Endpoint>>(inputs: impl IntoIterator<Item = E>, output: impl Into<Endpoint>) -> Task {
        Task::new(Work::Sort, inputs, output)
    }

    /// Puts the records in random order. The same seed and inputs give the same order.
    pub fn shuffle<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
        seed: u64,
    ) -> Task {
        Task::new(Work::Shuffle(seed), inputs, output)
    }

    /// Merges sorted inputs.
    pub fn merge<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
    ) -> Task {
        Task::new(Work::Merge, inputs, output)
    }

    /// Joins two inputs by their keys. [`Task::key`] sets the key of both sides, [`Task::right_key`] a different one
    /// for the right side.
    pub fn join(
        left: impl Into<Endpoint>,
        right: impl Into<Endpoint>,
        output: impl Into<Endpoint>,
        kind: JoinKind,
    ) -> Task {
        let mut task = Task::new(Work::Join, [left.into()], output);
        task.options.right = Some(RightSide { inputs: vec![right.into()], kind, ..RightSide::default() });
        task
    }

    /// Distributes the records among `parts` files. In the output path, `{}` stands for the number of the part.
    pub fn partition<E: Into<Endpoint>>(
        inputs: impl IntoIterator<Item = E>,
        output: impl Into<Endpoint>,
        pick: PartitionPick,
        parts: usize,
    ) -> Task {
        Task::new(Work::Partition { pick, parts, split_keys: false }, inputs, output)
    }

    /// Records have `bytes` bytes. In a join this applies to both sides.
    pub fn record(self, bytes: u32) -> Task {
        self.layout(Layout::Fixed(bytes))
    }

    /// Records begin with their length. In a join this applies to both sides.
    pub fn prefixed(self) -> Task {
        self.layout(Layout::Prefixed)
    }

    fn layout(mut self, layout: Layout) -> Task {
        self.options.layout = layout;
        self.options.right.iter_mut().for_each(|right| right.layout = layout);
        self
    }

    /// Records of the right side of a join have `bytes` bytes.
    pub fn right_record(mut self, bytes: u32) -> Task {
        self.options.right.iter_mut().for_each(|right| right.layout = Layout::Fixed(bytes));
        self
    }

    /// Adds a part of the key: `length` bytes at `offset`. In a join it applies to both sides.
    pub fn key(mut self, offset: u32, length: u32) -> Task {
        let part = KeyPart { offset, length, descending: false };
        self.options.keys.push(part);
        self.options.right.iter_mut().for_each(|right| right.keys.push(part));
        self
    }

    /// The key of the right side of a join, if it differs from that of the left side.
    pub fn right_key(mut self, keys: &[KeyPart]) -> Task {
        self.options.right.iter_mut().for_each(|right| right.keys = keys.to_vec());
        self
    }

    /// The limit on the memory of this work, on a cluster that of each node; by default half of the available memory.
    pub fn memory(mut self, bytes: u64) -> Task {
        self.options.memory = Some(Size::Bytes(bytes));
        self
    }

    /// Adds a directory for data that does not fit in memory; by default that of the output.
    pub fn scratch(mut self, directory: impl Into<PathBuf>) -> Task {
        self.options.scratch.push(directory.into());
        self
    }

    /// The number of worker threads; by default one for each core.
    pub fn threads(mut self, threads: usize) -> Task {
        self.options.threads = Some(threads);
        self
    }

    /// Leaves the first `lines` lines of every input, a header, in front of the output, where they stand once. For
    /// sorts and shuffles of lines whose inputs all have the same header.
    pub fn header(mut self, lines: usize) -> Task {
        self.options.header = lines;
        self
    }

    /// Keeps only the first of the records with equal keys.
    pub fn unique(mut self) -> Task {
        self.options.unique = true;
        self
    }

    /// Continues from the files that an earlier run of the same sort left.
    pub fn resume(mut self) -> Task {
        self.options.resume = true;
        self
    }

    /// Uses `nodes` nodes inside this process. The output is the same as without nodes, except that of a partition by
    /// range or in turn.
    pub fn nodes(mut self, nodes: usize) -> Task {
        self.nodes = Some(nodes);
        self
    }

    /// Runs on the nodes of this cluster instead of this machine.
    pub fn on(mut self, cluster: Cluster) -> Task {
        self.cluster = Some(cluster);
        self
    }

    /// Runs the task. The receipt proves the verb's invariant: for a sort, that the output has the input's records.
    ///
    /// # Errors
    /// [`Error::is_wrong`](crate::Error::is_wrong) tells wrong data from a failed operation. In both cases no output
    /// has its final name.
    pub fn run(&self, progress: &Progress) -> Result<Receipt> {
        let receipt = match self.cluster()? {
            None => self.run_here(Duplicates::Fail, progress)?.0,
            Some(_) if matches!(self.options.output, Endpoint::Table(_)) => {
                self.load_from(Duplicates::Fail, progress)?.0
            }
            Some(cluster) => thalweg_job::run(cluster, &self.options, progress)?,
        };
        Ok(Receipt { asked: self.words(), ..receipt })
    }

    /// The words of the command for this task.
    pub fn words(&self) -> Vec<String> {
        let text = |end: &Endpoint| Ok::<_, Infallible>(end.to_string());
        let Ok(spec) = self.options.try_map(text, text, |layout| layout.form());
        let mut words = spec.words();
        words.extend(self.nodes.iter().flat_map(|nodes| ["--nodes".into(), nodes.to_string()]));
        if let Some(Cluster { identity, name, on }) = &self.cluster {
            let identity = || identity.display().to_string();
            match name {
                Some(name) => {
                    words.extend(["--cluster", name, "--identity", &identity()].map(String::from));
                }
                None => words.extend(["--cluster".into(), identity()]),
            }
            words.extend(on.iter().flat_map(|host| ["--on".into(), host.clone()]));
        }
        words
    }

    /// Sorts the inputs into a table without records, the output. Afterwards the table has all of them, or, after an
    /// error, none.
    ///
    /// # Errors
    /// If the output is not a table; otherwise as for [`Task::run`].
    pub fn load(&self, duplicates: Duplicates, progress: &Progress) -> Result<TableLoaded> {
        let loaded = match (self.cluster()?, &self.options.output) {
            (None, Endpoint::Table(_)) => self.run_here(duplicates, progress)?.1,
            (Some(_), Endpoint::Table(_)) => self.load_from(duplicates, progress)?.1,
            _ => None,
        };
        loaded.ok_or_else(|| Error::Refused("the output of a load is a table: table:NAME".into()).into())
    }

    /// Sorts on the nodes of a cluster into a hidden file here, beside scratch data, and loads that into the table.
    fn load_from(
        &self,
        duplicates: Duplicates,
        progress: &Progress,
    ) -> Result<(Receipt, Option<TableLoaded>)> {
        let WorkOptions { output, scratch, memory, layout, keys, .. } = &self.options;
        // A table that cannot be loaded is refused before the nodes work.
        self.sink(&mut Ends::default(), &mut output.clone(), duplicates)?;
        let directory = scratch.first().cloned().unwrap_or_default();
        let sorted = Removed(directory.join(hidden::unique("load")));
        let mut sort = self.clone();
        sort.options.output = Endpoint::Client(sorted.0.clone());
        let mut receipt = sort.run(progress)?;
        let mut merge = Task::merge([sorted.0.clone()], output.clone());
        (merge.options.layout, merge.options.keys) = (*layout, keys.clone());
        (merge.options.memory, merge.options.scratch) = (*memory, scratch.clone());
        let (merged, loaded) = merge.run_here(duplicates, progress)?;
        receipt.seconds += merged.seconds;
        Ok((receipt, loaded))
    }

    /// Replaces an output that is a table by a pipe.
    fn sink(&self, ends: &mut Ends, output: &mut Endpoint, duplicates: Duplicates) -> Result<()> {
        let form = || match self.options.work {
            Work::Sort | Work::Merge => form(self.options.layout, &self.options.keys),
            _ => Err(Error::Refused("a table takes the output of a sort or a merge".into())),
        };
        ends.sink(output, form, duplicates)
    }

    fn run_here(
        &self,
        duplicates: Duplicates,
        progress: &Progress,
    ) -> Result<(Receipt, Option<TableLoaded>)> {
        let (mut options, mut ends) = (self.options.clone(), Ends::default());
        let right = options.right.iter_mut().flat_map(|right| &mut right.inputs);
        if let (Work::Partition { pick: PartitionPick::Range, .. }, [end @ Endpoint::Table(_)]) =
            (options.work, &options.inputs[..])
        {
            return Err(BadPath::RangesOfStream(end.to_string().into()).into());
        }
        options.inputs.iter_mut().chain(right).try_for_each(|input| ends.source(input))?;
        self.sink(&mut ends, &mut options.output, duplicates)?;
        ends.run(progress, || match self.nodes {
            Some(2..) if options.header > 0 => Err(Asked::HeaderOnNodes.into()),
            Some(nodes @ 2..) => thalweg_job::run_in_process(&options, nodes, progress),
            _ => thalweg_engine::run(&options, progress),
        })
    }

    /// Returns what the task will do and how long it will take, without running it.
    pub fn plan(&self) -> Result<TaskPlan> {
        let asked = self.words();
        Ok(match self.cluster()? {
            None => TaskPlan::Machine(Box::new(Plan { asked, ..thalweg_engine::plan(&self.options)? })),
            Some(cluster) => {
                TaskPlan::Cluster(ClusterPlan { asked, ..thalweg_job::plan(cluster, &self.options)? })
            }
        })
    }

    /// Starts the task with a node of the cluster as the coordinator, and does not wait for its end.
    pub fn detach(&self) -> Result<Detached> {
        match self.cluster()? {
            None => Err(Asked::DetachedHere.into()),
            Some(cluster) => thalweg_job::detach(cluster, &self.options),
        }
    }

    /// The cluster, if any. An error if nodes in this process are wanted too.
    fn cluster(&self) -> Result<Option<&Cluster>> {
        match (&self.cluster, self.nodes) {
            (Some(_), Some(_)) => Err(Asked::NodesOfCluster.into()),
            (cluster, _) => Ok(cluster.as_ref()),
        }
    }
}
