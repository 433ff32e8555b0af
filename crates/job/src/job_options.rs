//! Converts the options of a client to a [`JobOptions`], whose paths mean the same on every host, and back to options
//! on each host.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thalweg_api::{IoChoice, JobAttempt, JobOptions, JobSpec, KeyBound, LostRange, Work, WorkSpec};
use thalweg_base::escape::{escaped, unescaped};
use thalweg_engine::participant::{KeyRange, ParticipantOptions};
use thalweg_engine::{
    Asked, AskedOfCluster, Endpoint, Error, JobFault, Layout, Result, Size, WorkOptions, check_options,
};
use thalweg_io::Action;
use thalweg_record::SplitPoint;

use crate::client_served::CLIENT;
use crate::node::Node;
use crate::volumes;

/// A path as text.
pub(crate) fn word_of(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

pub(crate) fn path_of(word: &str) -> Result<PathBuf> {
    let bytes = unescaped(word).ok_or_else(|| JobFault::Path(word.into()))?;
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// The options of a client as a request that means the same on every host. The places of its volumes are added later.
pub(crate) fn ask_of(options: &WorkOptions) -> Result<JobOptions> {
    let WorkOptions { work, output, .. } = options;
    let verb = work.verb();
    check_is_for_nodes(options)?;
    check_options(options)?;
    if options.all_inputs().next().is_none() {
        return Err(AskedOfCluster::NoInput(verb).into());
    }
    let all_or_none = |named: fn(&Endpoint) -> bool, prefix| match (
        options.all_inputs().any(named),
        options.all_inputs().all(named),
    ) {
        (true, false) => Err(AskedOfCluster::SomeInputs(prefix)),
        (_, all) => Ok(all),
    };
    let own_inputs = all_or_none(|end| matches!(end, Endpoint::Nodes(_)), "nodes:")?;
    let lent_inputs = all_or_none(|end| matches!(end, Endpoint::Client(_)), "client:")?;
    all_or_none(|end| matches!(end, Endpoint::Table(_)), "table:")?;
    volumes::check(options)?;
    let lent_output = matches!(output, Endpoint::Client(_) | Endpoint::Volume(_));
    if lent_output && matches!(work, Work::Partition { .. }) {
        return Err(AskedOfCluster::ClientParts.into());
    }
    if let Some(Size::Percent(_)) = options.scratch_limit {
        return Err(AskedOfCluster::ScratchPercent.into());
    }
    Ok(JobOptions {
        spec: options.try_map(word_of_input, word_of_end, |layout| layout.form())?,
        own_inputs,
        lent_inputs,
        own_output: matches!(output, Endpoint::Nodes(_)),
        lent_output,
        volumes: Vec::new(),
    })
}

/// Fails if an option is set that work on nodes does not have, or that this program does not know.
fn check_is_for_nodes<E, L>(spec: &WorkSpec<E, L>) -> Result<()> {
    if spec.header > 0 {
        return Err(Asked::HeaderOnNodes.into());
    }
    if spec.resume || spec.no_proof || spec.io != IoChoice::Auto {
        return Err(AskedOfCluster::Options(spec.work.verb()).into());
    }
    match spec.not_known() {
        names if names.is_empty() => Ok(()),
        names => Err(AskedOfCluster::NotKnown(names).into()),
    }
}

/// An input of the work as text.
fn word_of_input(end: &Endpoint) -> Result<String> {
    match end {
        Endpoint::Table(_) => Ok(word_of(Path::new(&end.to_string()))),
        other => word_of_end(other),
    }
}

/// An endpoint of the work as text.
pub(crate) fn word_of_end(end: &Endpoint) -> Result<String> {
    // Files that all nodes have, and the client's own, get absolute paths.
    let absolute = |path: &Path| match std::path::absolute(path) {
        Ok(path) => Ok(word_of(&path)),
        Err(why) => Err(Error::from(thalweg_io::Error::new(Action::Stat, path, why))),
    };
    match end {
        Endpoint::Nodes(path) | Endpoint::Client(path) if path.as_os_str().is_empty() => {
            Err(AskedOfCluster::NoName(end.clone()).into())
        }
        Endpoint::Nodes(path) => Ok(word_of(path)),
        Endpoint::Path(path) => absolute(path),
        Endpoint::Volume(path) => Ok(word_of(path.as_path())),
        Endpoint::Client(path) => Ok(format!("{CLIENT}{}", absolute(path)?)),
        Endpoint::Standard => Err(AskedOfCluster::Standard.into()),
        other => Err(AskedOfCluster::NotAFile(other.clone()).into()),
    }
}

/// The request as options, with the paths as they are in the request.
pub(crate) fn options_of(ask: &JobOptions) -> Result<WorkOptions> {
    check_is_for_nodes(&ask.spec)?;
    let path = |word: &String| path_of(word).map(Endpoint::Path);
    ask.spec.try_map(path, path, Layout::of)
}

/// The options of this host's participant, with the job's paths and patterns resolved on this host.
pub(crate) fn share_of(node: &dyn Node, job: &JobSpec, attempt: &JobAttempt) -> Result<ParticipantOptions> {
    let here = |path: PathBuf| node.data().join(path);
    let ask = &job.ask;
    let mut sort = options_of(ask)?;
    if ask.own_inputs {
        let own = |words: &[String]| -> Result<Vec<Endpoint>> {
            Ok(matching(node, words)?.into_iter().map(Endpoint::Path).collect())
        };
        sort.inputs = own(&ask.spec.inputs)?;
        if let (Some(right), Some(asked)) = (&mut sort.right, &ask.spec.right) {
            right.inputs = own(&asked.inputs)?;
        }
    }
    if ask.own_output {
        let width = (attempt.hosts.len() - 1).to_string().len();
        let number = format!("{:0width$}", attempt.index);
        let name = match ask.spec.work {
            Work::Partition { .. } => ask.spec.output.clone(),
            _ => ask.spec.output.replace("{}", &number),
        };
        sort.output = Endpoint::Path(here(path_of(&name)?));
    }
    // The scratch is beside the output, unless that is the client's.
    if ask.lent_output && sort.scratch.is_empty() {
        sort.scratch.push(PathBuf::new());
    }
    sort.scratch = sort.scratch.into_iter().map(here).collect();
    Ok(ParticipantOptions {
        sort,
        node: (attempt.index, attempt.hosts.len()),
        in_process: false,
        own_inputs: ask.own_inputs,
        own_output: ask.writes_own(),
        memory_most: node.memory_max(),
        number: number_of(&job.job, attempt.number()),
        lost: attempt.lost.iter().map(|word| path_of(word)).collect::<Result<_>>()?,
        within: within(attempt.range.as_ref()),
    })
}

/// The bounds of a lost range; no bounds if there is none.
fn within(range: Option<&LostRange>) -> KeyRange {
    let split_point = |bound: &KeyBound| SplitPoint { normal: bound.key.clone(), origin: bound.origin };
    range.map_or_else(KeyRange::default, |range| KeyRange {
        low: range.low.as_ref().map(split_point),
        high: range.high.as_ref().map(split_point),
    })
}

/// The same range, as it is sent to a node.
pub(crate) fn range_of(within: &KeyRange) -> LostRange {
    let bound =
        |split_point: &SplitPoint| KeyBound { key: split_point.normal.clone(), origin: split_point.origin };
    LostRange { low: within.low.as_ref().map(bound), high: within.high.as_ref().map(bound) }
}

/// A number for an attempt of a job that no other attempt has, on any host: ids are random.
pub(crate) fn number_of(job: &str, attempt: u32) -> u64 {
    let random = job.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    random.wrapping_add(u64::from(attempt))
}

/// The inputs of both sides: paths that are the same on every host, or patterns if each node has its own inputs.
pub(crate) fn inputs_of(ask: &JobOptions) -> Result<Vec<PathBuf>> {
    ask.spec.all_inputs().map(|word| path_of(word)).collect()
}

/// The node's own files that match the patterns, in the order of the patterns and, for each, of the names.
pub(crate) fn matching(node: &dyn Node, patterns: &[String]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for pattern in patterns {
        all.extend(matching_one(&node.data().join(path_of(pattern)?))?);
    }
    Ok(all)
}

fn matching_one(pattern: &Path) -> Result<Vec<PathBuf>> {
    let named = || pattern.to_path_buf();
    let text = pattern.to_str().ok_or_else(|| AskedOfCluster::PatternNotText(named()))?;
    if !text.contains(['*', '?', '[']) {
        return Ok(vec![pattern.to_path_buf()]);
    }
    // As in a shell, patterns do not match hidden files, such as outputs that are not complete.
    let rules = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let found =
        glob::glob_with(text, rules).map_err(|why| AskedOfCluster::BadPattern(named(), why.to_string()))?;
    let unread = |why: glob::GlobError| {
        let path = why.path().to_path_buf();
        thalweg_io::Error::new(Action::Read, path, why.into())
    };
    let found: Vec<PathBuf> = found.collect::<std::result::Result<_, _>>().map_err(unread)?;
    if found.is_empty() {
        return Err(AskedOfCluster::NoMatch(named()).into());
    }
    Ok(found)
}
