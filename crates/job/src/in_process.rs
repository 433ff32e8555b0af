//! A job whose nodes are all in this process: the participants of a cluster's job, with nothing but memory between
//! them.
//!
//! Model: the steps that the coordinator takes with nodes of a cluster, as calls. A node cannot be lost without the
//! others, so there is one attempt, without votes, and the first error ends it.
//! Invariant: the output is that of one node: the river gives out pages in their order, and sorters are stable.
//! Non-goals: streams, which cannot be sampled; resuming an earlier run.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{ParticipantEnd, Receipt, Stage, Work};
use thalweg_base::clock::Stopwatch;
use thalweg_base::unwinding::OnPanic;
use thalweg_engine::participant::{
    ClientDisks, ClientOutput, KeyRange, Participant, ParticipantOptions, PreparedParticipant, Starts, deal,
    publish_parts, receipt,
};
use thalweg_engine::{Asked, Error, Progress, Result, Size, WorkOptions};
use thalweg_io::process;
use thalweg_record::SplitPoint;
use thalweg_river::{Inlet, Outlet};

use crate::client::parted;
use crate::ranges::{Ranges, ranges};

/// More nodes than this should be machines of their own.
const NODES_MAX: usize = 256;
/// How often a node that waits for those before it checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Runs some work on `nodes` nodes in this process, which share its memory and its cores.
///
/// The receipt's invariant, and the output, are those of the same work on one node.
pub fn run_in_process(options: &WorkOptions, nodes: usize, progress: &Progress) -> Result<Receipt> {
    InProcess::open(options, nodes)?.run(progress)
}

/// The job, with all inputs open.
struct InProcess<'a> {
    options: &'a WorkOptions,
    watch: Stopwatch,
    shares: Vec<Participant>,
    all_bytes: u64,
    memory_bytes: u64,
}

impl<'a> InProcess<'a> {
    fn open(options: &'a WorkOptions, nodes: usize) -> Result<InProcess<'a>> {
        let watch = Stopwatch::start();
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Asked::Nodes { nodes, max: NODES_MAX }.into());
        }
        if options.resume {
            let what = "resume on several nodes";
            return Err(Asked::NoOption { verb: options.work.verb(), what }.into());
        }
        let share = |node, memory| {
            let share = ParticipantOptions {
                sort: WorkOptions { memory, ..options.clone() },
                node: (node, nodes),
                in_process: true,
                own_inputs: false,
                own_output: false,
                memory_most: None,
                number: 0,
                lost: Vec::new(),
                within: KeyRange::default(),
            };
            Participant::open(share, ClientDisks::default())
        };
        let first = share(0, options.memory)?;
        let (all_bytes, memory_bytes) = first.found();
        // The available memory may be less by now.
        let others = (1..nodes).map(|node| share(node, Some(Size::Bytes(memory_bytes))));
        let shares = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<Participant>>>()?;
        Ok(InProcess { options, watch, shares, all_bytes, memory_bytes })
    }

    fn run(self, progress: &Progress) -> Result<Receipt> {
        let InProcess { options, watch, shares, all_bytes, memory_bytes } = self;
        let (work, nodes) = (options.work, shares.len());
        let is_parted = matches!(work, Work::Partition { .. });
        let stages = if is_parted { 1 } else { 2 };
        progress.begin("read+river", 1, stages, all_bytes);
        let mut output = (!is_parted).then(|| shares[0].output());
        let sampled = of_each(shares, |share| share.sample(memory_bytes, (0, all_bytes)))?;
        let (mut prepared, samples): (Vec<PreparedParticipant>, Vec<Vec<SplitPoint>>) =
            sampled.into_iter().unzip();
        let direct_output =
            output.as_mut().map(|output| lend(output, &mut prepared, work, all_bytes)).transpose()?;
        let weights = vec![1; nodes];
        let pages: Vec<Vec<u64>> =
            prepared[0].pages().into_iter().map(|(pages, _)| deal(pages, &weights)).collect();
        let memory = vec![memory_bytes / nodes as u64; nodes];
        let within = KeyRange::default();
        let Ranges { split_points, expected } =
            ranges(options, samples.concat(), (&weights, &memory), &within, all_bytes)?;
        let together = Together::new(nodes, split_points, &pages, watch, || {
            progress.begin(work.last_stage(), 2, stages, work.output_bytes(all_bytes));
        });
        let done = of_each(prepared.into_iter().zip(expected).enumerate(), |(node, (prepared, expected))| {
            together.run(prepared, node, expected, (progress, is_parted))
        });
        let done = done.map_err(|why| progress.cancelled().map_or(why, Error::Interrupted))?;
        let (prepared, ends): (Vec<PreparedParticipant>, Vec<ParticipantEnd>) = done.into_iter().unzip();
        let input_file_bytes = ends[0].node.input.1;
        let mut receipt = receipt(options, (&ends, 0..0), input_file_bytes, watch.seconds())?;
        if work != Work::Join {
            prepared[0].check_all_came(&receipt.input)?;
        }
        if let Work::Partition { pick, .. } = work {
            receipt = parted(receipt, pick, false);
        }
        receipt.io.direct_output = direct_output.unwrap_or(receipt.io.direct_output);
        if receipt.holds {
            let publishing = Stopwatch::start();
            match output {
                Some(mut output) => {
                    let edges = ends.into_iter().flat_map(|end| end.edges).collect();
                    output.publish(receipt.output_file_bytes, edges)?;
                }
                None => publish_parts(prepared)?,
            }
            receipt.stages.push(Stage::new("sync", publishing.seconds()));
            receipt.seconds = watch.seconds();
        }
        // The nodes are one process, and not hosts that a user knows.
        receipt.cpu_seconds = process::usage().cpu_seconds;
        receipt.nodes.clear();
        Ok(receipt)
    }
}

/// Makes the file that all write to. Returns whether it is written past the page cache.
fn lend(
    output: &mut ClientOutput,
    prepared: &mut [PreparedParticipant],
    work: Work,
    all_bytes: u64,
) -> Result<bool> {
    let file = output.begin(work.output_bytes(all_bytes), false)?;
    prepared.iter_mut().for_each(|prepared| prepared.write_to(file.handle().clone()));
    Ok(file.is_direct())
}

/// Runs `work` for every node on a thread of its own. Of several errors, returns a cause rather than the loss of
/// another node.
fn of_each<N: Send, T: Send>(
    nodes: impl IntoIterator<Item = N>,
    work: impl Fn(N) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let done = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = nodes.into_iter().map(|node| scope.spawn(move || work(node))).collect();
        let joined = running.into_iter().map(|node| node.join());
        joined
            .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Vec<Result<T>>>()
    });
    let mut gone = None;
    let mut all = Vec::with_capacity(done.len());
    for done in done {
        match done {
            Ok(done) => all.push(done),
            Err(why) if why.is_gone() => drop(gone.get_or_insert(why)),
            Err(why) => return Err(why),
        }
    }
    gone.map_or(Ok(all), Err)
}

/// What the nodes of a job share while they run.
struct Together<'a, B> {
    split_points: Vec<SplitPoint>,
    pages: &'a [Vec<u64>],
    watch: Stopwatch,
    /// Called by the first node that writes.
    begins: B,
    known: Mutex<Known>,
    news: Condvar,
}

/// The part of it that changes.
struct Known {
    /// The ends of each side's river that were not taken yet. Made by the first node that needs one.
    rivers: Vec<Vec<Option<(Inlet, Outlet)>>>,
    /// The lengths of the ranges.
    bytes: Vec<Option<u64>>,
    writes: bool,
    failed: bool,
}

impl<'a, B: Fn() + Sync> Together<'a, B> {
    fn new(
        nodes: usize,
        split_points: Vec<SplitPoint>,
        pages: &'a [Vec<u64>],
        watch: Stopwatch,
        begins: B,
    ) -> Self {
        let known = Known {
            rivers: pages.iter().map(|_| Vec::new()).collect(),
            bytes: vec![None; nodes],
            writes: false,
            failed: false,
        };
        Together { split_points, pages, watch, begins, known: Mutex::new(known), news: Condvar::new() }
    }

    /// Runs a node to the end of its range.
    fn run(
        &self,
        mut prepared: PreparedParticipant,
        node: usize,
        (range_bytes, keys): (u64, Vec<SplitPoint>),
        (progress, is_parted): (&Progress, bool),
    ) -> Result<(PreparedParticipant, ParticipantEnd)> {
        let _tells = OnPanic(|| self.fail());
        let place = PlaceOf { together: self, node, crossed_seconds: Mutex::new(0.0) };
        let of_parts = Progress::default();
        // Parts are written while the input is read, and are not a stage of their own.
        let written = if is_parted { &of_parts } else { progress };
        let mut rivers = |prepared: &PreparedParticipant, side: usize| self.ends(prepared, side, node);
        let ran =
            prepared.run(&mut rivers, (self.pages, range_bytes, keys), None, &place, (progress, written));
        let mut end = ran.inspect_err(|_| self.fail())?;
        end.node.seconds[1] = *place.crossed_seconds.lock().expect("no holder panics");
        Ok((prepared, end))
    }

    /// Stops the other nodes after one has failed, and drops ends of rivers not taken yet, so no node waits for them.
    fn fail(&self) {
        let mut known = self.known.lock().expect("no holder panics");
        known.failed = true;
        let untaken = std::mem::take(&mut known.rivers);
        drop(known);
        self.news.notify_all();
        drop(untaken);
    }

    /// This node's ends of a side's river. The first node that calls this makes those of all nodes.
    fn ends(&self, prepared: &PreparedParticipant, side: usize, node: usize) -> Result<(Inlet, Outlet)> {
        let mut known = self.known.lock().expect("no holder panics");
        if known.failed {
            return Err(another_failed());
        }
        let river = &mut known.rivers[side];
        if river.is_empty() {
            let ends =
                prepared.river(side, side as u64, self.split_points.clone(), &self.pages[side])?.build()?;
            *river = ends.inlets.into_iter().zip(ends.outlets).map(Some).collect();
        }
        Ok(river[node].take().expect("each node comes once"))
    }
}

fn another_failed() -> Error {
    Error::Gone("another node has failed".into(), None)
}

/// A node's place among all nodes of the job.
struct PlaceOf<'a, B> {
    together: &'a Together<'a, B>,
    node: usize,
    crossed_seconds: Mutex<f64>,
}

impl<B: Fn() + Sync> Starts for PlaceOf<'_, B> {
    fn crossed(&self) {
        *self.crossed_seconds.lock().expect("no holder panics") = self.together.watch.seconds();
    }

    fn say(&self, bytes: u64) -> Result<()> {
        self.together.known.lock().expect("no holder panics").bytes[self.node] = Some(bytes);
        self.together.news.notify_all();
        Ok(())
    }

    fn wait(&self, should_continue: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let mut known = self.together.known.lock().expect("no holder panics");
        while should_continue() {
            if known.failed {
                return Err(another_failed());
            }
            if let Some(start) = known.bytes[..self.node].iter().copied().sum() {
                if !std::mem::replace(&mut known.writes, true) {
                    (self.together.begins)();
                }
                return Ok(Some(start));
            }
            known = self.together.news.wait_timeout(known, LOOK).expect("no holder panics").0;
        }
        Ok(None)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // A test changes files from outside.
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::{Path, PathBuf};

    use thalweg_engine::{Endpoint, JobFault, Layout};

    use super::*;

    const TEXT: &[u8] = b"b\na\nc\n";

    /// A sort of a text in a new directory of this name.
    fn sort(name: &str) -> (PathBuf, WorkOptions) {
        let place = std::env::temp_dir().join(format!("thalweg-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("in"), TEXT).unwrap();
        let [from, to] = ["in", "out"].map(|name| Endpoint::Path(place.join(name)));
        let options = WorkOptions::new(Work::Sort, vec![from], to, Layout::Lines);
        (place, WorkOptions { memory: Some(Size::Bytes(64 << 20)), ..options })
    }

    /// Runs a sort whose file `change` modifies after it was opened.
    fn sorted(change: impl FnOnce(&Path)) -> Result<u64> {
        let (place, options) = sort("changed");
        let job = InProcess::open(&options, 2)?;
        change(&place.join("in"));
        let receipt = job.run(&Progress::default());
        assert_eq!(place.join("out").exists(), receipt.is_ok(), "what fails leaves no output");
        fs::remove_dir_all(&place).unwrap();
        Ok(receipt?.output.records)
    }

    /// No thread took the node's ends of the river, and the others waited for what would come of them.
    #[test]
    fn a_node_that_fails_before_it_comes_to_the_river_ends_all() {
        let (place, options) = sort("early");
        let InProcess { shares, all_bytes, memory_bytes, watch, .. } = InProcess::open(&options, 2).unwrap();
        let mut output = shares[0].output();
        let sampled = of_each(shares, |share| share.sample(memory_bytes, (0, all_bytes))).unwrap();
        let mut prepared: Vec<PreparedParticipant> =
            sampled.into_iter().map(|(prepared, _)| prepared).collect();
        // The second has no file to write to.
        lend(&mut output, &mut prepared[..1], Work::Sort, all_bytes).unwrap();
        let pages = [vec![prepared[0].pages()[0].0, 0]];
        let together = Together::new(2, Vec::new(), &pages, watch, || {});
        let progress = Progress::default();
        let run =
            |(node, prepared)| together.run(prepared, node, (all_bytes, Vec::new()), (&progress, false));
        let failed = of_each(prepared.into_iter().enumerate(), run).map(drop).unwrap_err();
        assert!(matches!(failed, Error::Job(JobFault::NoSharedOutput)), "{failed}");
        drop(output);
        let left: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["in"]);
        fs::remove_dir_all(&place).unwrap();
    }

    /// A last newline that became another byte got one more newline, and the receipt said that the invariant holds.
    #[test]
    fn others_than_all_bytes_of_the_input_are_an_error() {
        assert_eq!(sorted(|_| {}).unwrap(), 3);
        let told = |change: &dyn Fn(&Path)| match sorted(change) {
            Err(told) => told.to_string(),
            other => panic!("{other:?}"),
        };
        let came = told(&|input| {
            let before = fs::metadata(input).unwrap().modified().unwrap();
            fs::write(input, b"b\na\ncx").unwrap();
            File::options().write(true).open(input).unwrap().set_modified(before).unwrap();
        });
        assert_eq!(came, "of 6 bytes of the inputs 7 came; nothing was written, run again");
        let changed = "/in changed while it was being read; nothing was written, run again";
        let cut = told(&|input| File::options().write(true).open(input).unwrap().set_len(4).unwrap());
        assert!(cut.ends_with(changed), "{cut}");
        let grown = sorted(|input| {
            File::options().append(true).open(input).unwrap().write_all(b"d\n").unwrap();
        });
        assert_eq!(grown.unwrap(), 3);
    }
}
