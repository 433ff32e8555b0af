//! What was asked of a verb, option by option, and what it means together.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use thalweg::model::Simulated;
use thalweg::{
    CheckOptions, Cluster, Endpoint, GenOptions, JoinKind, KeyPart, Layout, PartitionPick, PumpOptions,
    RightSide, Size, Task, Work, WorkOptions,
};
use thalweg_api::RecordForm;

use crate::{Command, Usage, values};

/// What was asked of a verb. A list or an `Option` is empty if its option was not given.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// The command. Only some flags stand without one.
    pub command: Option<Command>,
    /// What follows the command and is no option: inputs, for some commands an output.
    pub words: Vec<OsString>,
    /// The work on records, without its inputs, output, layout and right side.
    pub work: WorkOptions,
    /// The output of the work.
    pub output: Option<OsString>,
    /// How records lie in the inputs.
    pub form: RecordForm,
    /// The records of the Sort Benchmark.
    pub datamation: bool,
    /// The seed of a shuffle.
    pub seed: Option<u64>,
    /// How a partition picks the part of a record.
    pub pick: PartitionPick,
    /// The number of parts.
    pub parts: Option<usize>,
    /// Whether records with equal keys may lie in several parts.
    pub split_keys: bool,
    /// Which records a join returns.
    pub kind: JoinKind,
    /// Bytes of a right record of a join.
    pub right_record: Option<u32>,
    /// The key of the right side of a join.
    pub right_keys: Vec<KeyPart>,
    /// The separator of the lines of a join.
    pub between: Option<Vec<u8>>,
    /// The cluster for a plan that need not exist.
    pub simulate: Option<Simulated>,
    /// Records to generate, without their count and output.
    pub generated: GenOptions,
    /// Where a check writes its summary.
    pub summary: Option<PathBuf>,
    /// Whether the files of a check are summaries.
    pub merge: bool,
    /// A transfer, without its ends.
    pub pump: PumpOptions,
    /// The file with the paths that a transfer copies.
    pub files_from: Option<OsString>,
    /// The ssh command.
    pub ssh: Option<String>,
    /// The command that starts this program at the far end of ssh.
    pub there: Option<String>,
    /// Whether a transfer goes through ssh alone.
    pub through_ssh: bool,
    /// The number of nodes in this process.
    pub nodes: Option<usize>,
    /// The cluster: its name, or the directory of an identity.
    pub cluster: Option<OsString>,
    /// The directory of the identity.
    pub identity: Option<PathBuf>,
    /// The hosts of the cluster that do the work.
    pub on: Vec<String>,
    /// Whether to leave the work running on the nodes.
    pub detach: bool,
}

/// What a plan is made for.
#[derive(Debug)]
pub enum Planned {
    /// This task.
    Task(Box<Task>),
    /// A sort on a simulated cluster, with this memory of each node, of records with this layout.
    Simulated(Simulated, Option<u64>, Layout),
}

/// The variable with the ssh command, if no option gives it.
const SSH: &str = "THALWEG_SSH";

/// The ssh program and its first arguments: as given, from the environment, or `ssh`.
pub fn ssh(given: Option<&str>) -> Vec<String> {
    let variable = || std::env::var(SSH).ok().filter(|command| !command.trim().is_empty());
    let command = given.map(String::from).or_else(variable);
    command.as_deref().unwrap_or("ssh").split_whitespace().map(String::from).collect()
}

/// A word as text.
pub fn text(word: &OsString) -> Result<String, Usage> {
    values::text(word).map(String::from).map_err(Usage)
}

impl Ask {
    /// What is asked of this command.
    pub fn new(command: Command) -> Ask {
        Ask { command: Some(command), ..Ask::default() }
    }

    /// The sort, shuffle, merge, join or partition.
    pub fn task(mut self) -> Result<Task, Usage> {
        self.check_place()?;
        let work = match self.command {
            Some(Command::Shuffle) => Work::Shuffle(self.seed.ok_or_else(|| {
                Usage("say which random order: --seed N; the same number gives the same order".into())
            })?),
            Some(Command::Merge) => Work::Merge,
            Some(Command::Join) => Work::Join,
            Some(Command::Partition) => self.partition()?,
            _ => Work::Sort,
        };
        let (layout, keys) = self.records()?;
        let right = if work == Work::Join { Some(self.right_side()?) } else { None };
        let cluster = self.cluster()?;
        if right.is_some() {
            self.words.truncate(1);
        }
        let output = self.output.as_deref().map_or(Ok(Endpoint::Standard), |output| self.end(output))?;
        if self.nodes.is_some_and(|nodes| nodes > 1) && self.work.resume {
            return Err(Usage("--resume continues a sort on one node; leave out --nodes".into()));
        }
        let inputs = self.ends()?;
        let options = WorkOptions { work, inputs, output, layout, keys, right, ..self.work };
        Ok(Task { options, nodes: self.nodes, cluster })
    }

    /// The check, and the cluster that has the files.
    pub fn check(self) -> Result<(CheckOptions, Option<Cluster>), Usage> {
        self.check_place()?;
        if self.words.is_empty() {
            return Err(Usage("check needs at least one FILE ('-' is standard input)".into()));
        }
        let cluster = self.cluster()?;
        let (layout, keys) = self.records()?;
        let inputs = self.ends()?;
        let WorkOptions { header, io, .. } = self.work;
        Ok((
            CheckOptions { inputs, layout, keys, header, summary: self.summary, merge: self.merge, io },
            cluster,
        ))
    }

    /// The records to generate.
    pub fn generated(self) -> Result<GenOptions, Usage> {
        let [count, file] = &self.words[..] else {
            return Err(Usage("gen takes two words, COUNT and FILE ('-' is standard output)".into()));
        };
        let count = values::count(count).map_err(Usage)?;
        Ok(GenOptions { count, output: Endpoint::from(&**file), io: self.work.io, ..self.generated })
    }

    /// What to plan.
    pub fn planned(self) -> Result<Planned, Usage> {
        let Some(asked) = self.simulate else { return self.task().map(|task| Planned::Task(Box::new(task))) };
        if !self.words.is_empty() || self.output.is_some() || self.cluster.is_some() || !self.on.is_empty() {
            return Err(Usage(
                "--simulate takes no input, output or cluster: it says how much there is with data=SIZE; leave them \
                 out"
                    .into(),
            ));
        }
        let memory = match self.work.memory {
            Some(Size::Bytes(bytes)) => Some(bytes),
            Some(Size::Percent(_)) => return Err(Usage("--memory of simulated nodes is in bytes".into())),
            None => None,
        };
        Ok(Planned::Simulated(asked, memory, self.records()?.0))
    }

    /// The layout of the records, and their key.
    pub fn records(&self) -> Result<(Layout, Vec<KeyPart>), Usage> {
        let RecordForm { record, prefixed } = self.form;
        if prefixed && (record.is_some() || self.datamation) {
            return Err(Usage(
                "--prefixed goes with neither --record nor --datamation; give only one of them".into(),
            ));
        }
        if !self.datamation {
            return Ok((Layout::of(&self.form), self.work.keys.clone()));
        }
        if record.is_some() || !self.work.keys.is_empty() {
            return Err(Usage(
                "--datamation means --record 100 --by 0:10; give either --datamation or those two".into(),
            ));
        }
        Ok((Layout::Fixed(100), vec![KeyPart { offset: 0, length: 10, descending: false }]))
    }

    /// The options of the right side of a join.
    fn right_side(&self) -> Result<RightSide, Usage> {
        let [left, right] = &self.words[..] else {
            return Err(Usage("join takes two inputs, LEFT and RIGHT ('-' is standard input)".into()));
        };
        if left == "-" && right == "-" {
            return Err(Usage("standard input is one of the inputs of a join, not both".into()));
        }
        let (layout, keys) = self.records()?;
        if layout.fixed_bytes().is_none() && self.right_record.is_some() {
            let alike = if self.form.prefixed {
                "prefixed records are joined with prefixed records"
            } else {
                "lines are joined with lines"
            };
            return Err(Usage(format!("--right-record comes with --record: {alike}")));
        }
        if layout.end_bytes() == 0 && self.between.is_some() {
            let others =
                if self.form.prefixed { "parts of --prefixed records" } else { "records of --record bytes" };
            return Err(Usage(format!("--between is for lines; nothing stands between {others}")));
        }
        Ok(RightSide {
            inputs: vec![self.end(right)?],
            layout: self.right_record.map_or(layout, Layout::Fixed),
            keys: if self.right_keys.is_empty() { keys } else { self.right_keys.clone() },
            kind: self.kind,
            between: self.between.clone().unwrap_or(RightSide::default().between),
            ..RightSide::default()
        })
    }

    /// The number of parts, and which record goes to which part.
    fn partition(&self) -> Result<Work, Usage> {
        let Ask { pick, split_keys, .. } = *self;
        let Some(parts) = self.parts else {
            return Err(Usage("say how many parts there are to be: --parts N".into()));
        };
        if self.output.is_none() {
            return Err(Usage(
                "say what the parts are called: -o 'DIR/part-{}', with {} for the number".into(),
            ));
        }
        if split_keys && pick != PartitionPick::Range {
            return Err(Usage(format!(
                "--split-keys is for ranges; leave it out with --pick {}",
                pick.name()
            )));
        }
        Ok(Work::Partition { pick, parts, split_keys })
    }

    /// The inputs.
    pub fn ends(&self) -> Result<Vec<Endpoint>, Usage> {
        // From a pipe the second one would find nothing, and from a file everything again.
        if self.words.iter().filter(|word| *word == "-").count() > 1 {
            return Err(Usage("'-' is there twice, and standard input is read once; leave one out".into()));
        }
        self.words.iter().map(|word| self.end(word)).collect()
    }

    /// An end of a verb on records. A table is of the cluster of the identity.
    fn end(&self, word: &OsStr) -> Result<Endpoint, Usage> {
        self.with_identity(Endpoint::from(word))
    }

    /// The endpoint; if it is a table, with the directory of the identity for its cluster.
    pub(crate) fn with_identity(&self, mut end: Endpoint) -> Result<Endpoint, Usage> {
        if let Endpoint::Table(table) = &mut end {
            table.identity = Some(self.identity()?);
        }
        Ok(end)
    }

    /// The directory of the identity: as given, or the user's own.
    pub fn identity(&self) -> Result<PathBuf, Usage> {
        self.identity
            .clone()
            .or_else(thalweg::nodes::default_identity)
            .ok_or_else(|| Usage("say where the cluster's identity is: --identity DIR".into()))
    }

    /// The directory of the identity for the cluster, and the name that the cluster must have if one was given.
    pub fn cluster_meant(&self) -> Result<(PathBuf, Option<String>), Usage> {
        let Some(said) = &self.cluster else { return Ok((self.identity()?, None)) };
        let path = PathBuf::from(said);
        if path.is_dir() {
            return Ok((path, None));
        }
        if path.is_file() {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            return Ok((directory.unwrap_or(Path::new(".")).to_path_buf(), None));
        }
        Ok((self.identity()?, Some(said.to_string_lossy().into_owned())))
    }

    /// The cluster whose nodes do the work, if any.
    fn cluster(&self) -> Result<Option<Cluster>, Usage> {
        if !self.is_on_nodes() {
            return Ok(None);
        }
        let (identity, name) = self.cluster_meant()?;
        Ok(Some(Cluster { identity, name, on: self.on.clone() }))
    }

    /// Whether the nodes of a cluster do the work.
    fn is_on_nodes(&self) -> bool {
        let is_theirs = |word: &OsString| Endpoint::from(&**word).is_of_cluster();
        self.cluster.is_some() || self.words.iter().chain(&self.output).any(is_theirs)
    }

    /// Refuses options that have a meaning only on the nodes of a cluster.
    fn check_place(&self) -> Result<(), Usage> {
        if self.is_on_nodes() {
            return Ok(());
        }
        let options =
            [("--detach", self.detach), ("--on", !self.on.is_empty()), ("--shares", self.work.equal)];
        match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Usage(format!(
                "{option} is for a {} on the nodes of a cluster; add --cluster, or leave it out",
                self.command.map(Command::name).unwrap_or_default()
            ))),
            None => Ok(()),
        }
    }
}
