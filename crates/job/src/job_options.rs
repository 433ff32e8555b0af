//! Converts the options of a client to a [`JobOptions`], whose paths mean the same on every host, and back to options
//! on each host.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thalweg_api::{JobAttempt, JobOptions, JobSpec, JoinSpec, KeyBound, LostRange, Work};
use thalweg_engine::participant::{KeyRange, ParticipantOptions};
use thalweg_engine::{
    Asked, AskedOfCluster, Endpoint, Error, IoChoice, JobFault, KeyPart, Layout, Result, RightSide, Size,
    WorkOptions,
};
use thalweg_io::Action;
use thalweg_record::SplitPoint;
use thalweg_transfer::{escaped, unescaped};

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
    let WorkOptions { work, output, right, .. } = options;
    let verb = work.verb();
    if options.header > 0 {
        return Err(Asked::HeaderOnNodes.into());
    }
    if options.resume || !options.proof || options.io != IoChoice::Auto {
        return Err(AskedOfCluster::Options(verb).into());
    }
    options.check()?;
    let inputs = || options.inputs.iter().chain(right.iter().flat_map(|right| &right.inputs));
    if inputs().next().is_none() {
        return Err(AskedOfCluster::NoInput(verb).into());
    }
    let all_or_none = |named: fn(&Endpoint) -> bool, prefix| match (inputs().any(named), inputs().all(named))
    {
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
    let (memory_bytes, memory_percent) = match options.memory {
        Some(Size::Percent(percent)) => (None, Some(percent)),
        Some(Size::Bytes(bytes)) => (Some(bytes), None),
        None => (None, None),
    };
    let scratch_limit = match options.scratch_limit {
        Some(Size::Percent(_)) => return Err(AskedOfCluster::ScratchPercent.into()),
        Some(Size::Bytes(bytes)) => Some(bytes),
        None => None,
    };
    Ok(JobOptions {
        work: *work,
        inputs: options.inputs.iter().map(word_of_input).collect::<Result<_>>()?,
        own_inputs,
        lent_inputs,
        output: word_of_end(output)?,
        own_output: matches!(output, Endpoint::Nodes(_)),
        lent_output,
        record: options.layout.words().0,
        prefixed: options.layout.words().1,
        keys: words_of(&options.keys),
        unique: options.unique,
        memory_bytes,
        memory_percent,
        scratch: options.scratch.iter().map(|path| word_of(path)).collect(),
        scratch_limit,
        threads: options.threads,
        equal: options.equal_shares,
        join: right.as_ref().map(join_ask).transpose()?,
        volumes: Vec::new(),
    })
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

fn join_ask(right: &RightSide) -> Result<JoinSpec> {
    Ok(JoinSpec {
        inputs: right.inputs.iter().map(word_of_input).collect::<Result<_>>()?,
        record: right.layout.words().0,
        prefixed: right.layout.words().1,
        keys: words_of(&right.keys),
        kind: right.kind,
        between: right.between.clone(),
    })
}

fn words_of(keys: &[KeyPart]) -> Vec<(u32, u32, bool)> {
    keys.iter().map(|part| (part.offset, part.length, part.descending)).collect()
}

/// The request as options, with the paths as they are in the request.
pub(crate) fn options_of(ask: &JobOptions) -> Result<WorkOptions> {
    let paths = |words: &[String]| words.iter().map(|word| path_of(word)).collect::<Result<Vec<PathBuf>>>();
    let inputs = paths(&ask.inputs)?.into_iter().map(Endpoint::Path).collect();
    Ok(WorkOptions {
        keys: ask.keys.iter().map(part_of).collect(),
        memory: ask.memory_percent.map(Size::Percent).or(ask.memory_bytes.map(Size::Bytes)),
        scratch: paths(&ask.scratch)?,
        scratch_limit: ask.scratch_limit.map(Size::Bytes),
        threads: ask.threads,
        unique: ask.unique,
        ..WorkOptions::new(
            ask.work,
            inputs,
            Endpoint::Path(path_of(&ask.output)?),
            Layout::of_words(ask.record, ask.prefixed),
        )
    })
}

/// The options of this host's participant, with the job's paths and patterns resolved on this host.
pub(crate) fn share_of(node: &dyn Node, job: &JobSpec, attempt: &JobAttempt) -> Result<ParticipantOptions> {
    let here = |path: PathBuf| node.data().join(path);
    let ask = &job.ask;
    let mut sort = options_of(ask)?;
    if ask.own_inputs {
        sort.inputs = matching(node, &ask.inputs)?.into_iter().map(Endpoint::Path).collect();
    }
    if ask.own_output {
        let width = (attempt.hosts.len() - 1).to_string().len();
        let number = format!("{:0width$}", attempt.index);
        let name = match ask.work {
            Work::Partition { .. } => ask.output.clone(),
            _ => ask.output.replace("{}", &number),
        };
        sort.output = Endpoint::Path(here(path_of(&name)?));
    }
    // The scratch is beside the output, unless that is the client's.
    if ask.lent_output && sort.scratch.is_empty() {
        sort.scratch.push(PathBuf::new());
    }
    sort.scratch = sort.scratch.into_iter().map(here).collect();
    let right = |right: &JoinSpec| -> Result<RightSide> {
        let inputs = match ask.own_inputs {
            true => matching(node, &right.inputs)?,
            false => right.inputs.iter().map(|word| path_of(word)).collect::<Result<_>>()?,
        };
        Ok(RightSide {
            inputs: inputs.into_iter().map(Endpoint::Path).collect(),
            layout: Layout::of_words(right.record, right.prefixed),
            keys: right.keys.iter().map(part_of).collect(),
            kind: right.kind,
            between: right.between.clone(),
        })
    };
    sort.right = ask.join.as_ref().map(right).transpose()?;
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

/// A part of a key, from its form in messages: offset, length, and whether it is descending.
pub(crate) fn part_of(&(offset, length, descending): &(u32, u32, bool)) -> KeyPart {
    KeyPart { offset, length, descending }
}

/// The inputs of both sides: paths that are the same on every host, or patterns if each node has its own inputs.
pub(crate) fn inputs_of(ask: &JobOptions) -> Result<Vec<PathBuf>> {
    let right = ask.join.iter().flat_map(|right| &right.inputs);
    ask.inputs.iter().chain(right).map(|word| path_of(word)).collect()
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

/// The command line of the job, for lists of jobs.
pub(crate) fn typed(ask: &JobOptions) -> Vec<String> {
    let own = |own: bool, word: &String| if own { format!("nodes:{word}") } else { word.clone() };
    let mut words = vec![ask.work.verb().to_string()];
    words.extend(ask.inputs.iter().map(|word| own(ask.own_inputs, word)));
    words.extend(ask.join.iter().flat_map(|right| &right.inputs).map(|word| own(ask.own_inputs, word)));
    words.extend(["-o".to_string(), own(ask.own_output, &ask.output)]);
    let records = |flags: [&str; 2], record: Option<u32>, keys: &[(u32, u32, bool)]| {
        let record = record.map(|bytes| [flags[0].to_string(), bytes.to_string()]);
        let keys = keys.iter().map(|(offset, length, descending)| {
            let down = if *descending { ":desc" } else { "" };
            [flags[1].to_string(), format!("{offset}:{length}{down}")]
        });
        record.into_iter().chain(keys).flatten().collect::<Vec<String>>()
    };
    words.extend(ask.prefixed.then(|| "--prefixed".to_string()));
    words.extend(records(["--record", "--by"], ask.record, &ask.keys));
    if let Some(right) = &ask.join {
        words.extend(records(["--right-record", "--right-by"], right.record, &right.keys));
        words.extend(["--type", right.kind.name()].map(String::from));
    }
    if ask.unique {
        words.push("--unique".to_string());
    }
    match ask.work {
        Work::Sort | Work::Merge | Work::Join => {}
        Work::Shuffle(seed) => words.extend(["--seed".to_string(), seed.to_string()]),
        Work::Partition { pick, parts, split_keys } => {
            words.extend(["--parts", &parts.to_string(), "--pick", pick.name()].map(String::from));
            words.extend(split_keys.then(|| "--split-keys".to_string()));
        }
    }
    words
}
