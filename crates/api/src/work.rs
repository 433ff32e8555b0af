//! What a verb on records was asked to do: the same in a call, in a job on nodes, and in lists of jobs, plans and
//! receipts.
//!
//! Invariant: an option that version 7 of the protocol does not have is in the JSON form only if it was given, so
//! programs of different ages understand each other until one uses it. Options that a program does not know are kept in
//! `unknown`, and work with such options is refused.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thalweg_base::units::Size;

use crate::{JobVolume, PartitionPick, hex};

/// What nodes do with the records that arrive through a river.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Each puts its range in order.
    #[default]
    Sort,
    /// Each merges its range of the inputs, which are already in order.
    Merge,
    /// All records get a random order, which depends only on the seed and the inputs, not on the number of nodes.
    Shuffle(u64),
    /// Each joins the records of two inputs whose keys lie in its range.
    Join,
    /// Each writes some of the parts.
    Partition {
        /// How records are assigned to parts.
        pick: PartitionPick,
        /// The number of parts.
        parts: usize,
        /// Whether records of equal keys may go to several parts.
        split_keys: bool,
    },
}

impl Work {
    /// The verb.
    pub fn verb(&self) -> &'static str {
        match self {
            Work::Sort => "sort",
            Work::Merge => "merge",
            Work::Shuffle(_) => "shuffle",
            Work::Join => "join",
            Work::Partition { .. } => "partition",
        }
    }

    /// Bytes of output for `input_bytes` bytes of input, if that is known. It is unknown for a join.
    pub fn output_bytes(&self, input_bytes: u64) -> u64 {
        if *self == Work::Join { 0 } else { input_bytes }
    }

    /// The name of its last stage.
    pub fn last_stage(&self) -> &'static str {
        match self {
            Work::Sort | Work::Merge | Work::Shuffle(_) => "sort+write",
            Work::Join => "join+write",
            Work::Partition { .. } => "write",
        }
    }
}

/// The records that a join returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinKind {
    /// A left record with each right record of its key.
    #[default]
    Inner,
    /// Left records with each match, and left records without a match.
    Left,
    /// Only left records without a match.
    Anti,
}

impl JoinKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            JoinKind::Inner => "inner",
            JoinKind::Left => "left",
            JoinKind::Anti => "anti",
        }
    }
}

/// A part of a key: `offset:length`, ascending or descending. Parts are compared in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32, bool)", into = "(u32, u32, bool)")]
pub struct KeyPart {
    /// The first byte of the part in the record.
    pub offset: u32,
    /// Bytes of the part, at least 1. A record that is too short has fewer.
    pub length: u32,
    /// Descending order.
    pub descending: bool,
}

impl From<(u32, u32, bool)> for KeyPart {
    fn from((offset, length, descending): (u32, u32, bool)) -> KeyPart {
        KeyPart { offset, length, descending }
    }
}

impl From<KeyPart> for (u32, u32, bool) {
    fn from(part: KeyPart) -> (u32, u32, bool) {
        (part.offset, part.length, part.descending)
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.offset, self.length, if self.descending { ":desc" } else { "" })
    }
}

/// Why a key cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPartError(String);

impl fmt::Display for KeyPartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a key: write OFFSET:LENGTH, and :asc or :desc behind it if you like, as in 0:10 or 0:10:desc",
            self.0
        )
    }
}

impl std::error::Error for KeyPartError {}

impl std::str::FromStr for KeyPart {
    type Err = KeyPartError;

    fn from_str(text: &str) -> Result<Self, KeyPartError> {
        let wrong = || KeyPartError(text.to_string());
        let mut parts = text.split(':');
        let mut number = || parts.next().and_then(|p| p.parse::<u32>().ok()).ok_or_else(wrong);
        let (offset, length) = (number()?, number()?);
        let descending = match parts.next() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(wrong()),
        };
        // A part longer than any record means the rest of the record.
        let length = length.min(u32::MAX - offset);
        if length == 0 || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(KeyPart { offset, length, descending })
    }
}

/// Which I/O back end to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else threads; the receipt says which.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads with pread and pwrite.
    Threads,
}

/// How records lie in a file, as two options say it. Neither means lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordForm {
    /// Bytes of a record.
    pub record: Option<u32>,
    /// Whether records begin with their length; then there is no `record`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefixed: bool,
}

/// The right side of a join, and how both sides are joined. `E` and `L` are those of [`WorkSpec`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinSpec<E = String, L = RecordForm> {
    /// Where its records are: one input, or on a cluster any number of files.
    pub inputs: Vec<E>,
    /// The layout of the records in them: as in the left side, of a fixed length, in lines or with a length.
    #[serde(flatten)]
    pub layout: L,
    /// The parts of the key, with the lengths and directions of those of the left side; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// Which records the join returns.
    pub kind: JoinKind,
    /// The separator between the parts of a line.
    #[serde(with = "hex::bytes")]
    pub between: Vec<u8>,
    /// Options of a program that is newer than this one, by their names.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl<E: Default, L: Default> Default for JoinSpec<E, L> {
    fn default() -> JoinSpec<E, L> {
        JoinSpec {
            inputs: Vec::new(),
            layout: L::default(),
            keys: Vec::new(),
            kind: JoinKind::default(),
            between: b"\t".to_vec(),
            unknown: BTreeMap::new(),
        }
    }
}

/// What to do with records, and how: to sort, shuffle, merge, join or partition them. `E` is a place that records come
/// from or go to, and `L` their layout: text and words in messages, and what the engine makes of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkSpec<E = String, L = RecordForm> {
    /// What is done with the records.
    #[serde(default)]
    pub work: Work,
    /// Where the records are, in order; standard input if empty. For a join, the left side, which is one input.
    pub inputs: Vec<E>,
    /// Where the result goes. May be one of the inputs. For a partition, a path with `{}` where a part's number goes.
    pub output: E,
    /// The layout of the records in the inputs.
    #[serde(flatten)]
    pub layout: L,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// For a sort or a shuffle of lines: how many of the first lines of every input stay in front of the output, where
    /// they stand once. All inputs must have the same ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header: usize,
    /// The right side of a join; `None` for all other work.
    #[serde(default, rename = "join")]
    pub right: Option<JoinSpec<E, L>>,
    /// The memory limit, for this work or, in a program that installed hooks, for the whole process, and on nodes for
    /// each; half of the available memory if not given.
    #[serde(flatten, with = "memory")]
    pub memory: Option<Size>,
    /// Directories for what does not fit; the output's directory if empty.
    #[serde(with = "paths")]
    pub scratch: Vec<PathBuf>,
    /// The most scratch space to use, on each node; a percentage is of the space available.
    #[serde(default, with = "size")]
    pub scratch_limit: Option<Size>,
    /// Threads that work side by side; one for each core if not given.
    pub threads: Option<usize>,
    /// Whether all nodes have equal shares, however fast they are; else each has as much as it can do in the same time.
    #[serde(default)]
    pub equal: bool,
    /// For a sort or a merge: keep only the first of records with equal keys.
    pub unique: bool,
    /// For a sort: continue from what an earlier run of the same command left.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resume: bool,
    /// The I/O back end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub io: IoChoice,
    /// Whether to take no proofs. Only benchmarks of a sort do without them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub no_proof: bool,
    /// Options of a program that is newer than this one, by their names.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl<E: Default, L: Default> WorkSpec<E, L> {
    /// Some work with whole records as keys, and defaults for all other options.
    pub fn new(work: Work, inputs: Vec<E>, output: E, layout: L) -> WorkSpec<E, L> {
        WorkSpec { work, inputs, output, layout, ..WorkSpec::default() }
    }
}

impl<E, L> WorkSpec<E, L> {
    /// The inputs, of both sides if it is a join.
    pub fn all_inputs(&self) -> impl Iterator<Item = &E> {
        self.inputs.iter().chain(self.right.iter().flat_map(|right| &right.inputs))
    }

    /// The first options that this program does not know, separated by commas; empty if there are none. They come from
    /// another host, so there are at most 10, in printable characters.
    pub fn not_known(&self) -> String {
        let of_right = self.right.iter().flat_map(|right| right.unknown.keys());
        let names = self.unknown.keys().chain(of_right).take(10);
        names
            .map(|name| name.chars().take(40).collect::<String>().escape_default().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The same with other kinds of places and layouts. `input` and `output` make them of those here.
    ///
    /// # Errors
    /// The first of `input` and `output`.
    pub fn try_map<F, M, X>(
        &self,
        mut input: impl FnMut(&E) -> Result<F, X>,
        output: impl FnOnce(&E) -> Result<F, X>,
        layout: impl Fn(&L) -> M,
    ) -> Result<WorkSpec<F, M>, X> {
        let inputs = self.inputs.iter().map(&mut input).collect::<Result<_, X>>()?;
        let right = match &self.right {
            None => None,
            Some(right) => Some(JoinSpec {
                inputs: right.inputs.iter().map(&mut input).collect::<Result<_, X>>()?,
                layout: layout(&right.layout),
                keys: right.keys.clone(),
                kind: right.kind,
                between: right.between.clone(),
                unknown: right.unknown.clone(),
            }),
        };
        Ok(WorkSpec {
            work: self.work,
            inputs,
            output: output(&self.output)?,
            layout: layout(&self.layout),
            keys: self.keys.clone(),
            header: self.header,
            right,
            memory: self.memory,
            scratch: self.scratch.clone(),
            scratch_limit: self.scratch_limit,
            threads: self.threads,
            equal: self.equal,
            unique: self.unique,
            resume: self.resume,
            io: self.io,
            no_proof: self.no_proof,
            unknown: self.unknown.clone(),
        })
    }
}

impl WorkSpec {
    /// The words of the command for this work: options follow in the order of the alphabet. Names of inputs that begin
    /// with a dash stand behind `--`, so that they are no options of a command that is made of the words.
    pub fn words(&self) -> Vec<String> {
        let inputs: Vec<String> = self.all_inputs().cloned().collect();
        let is_option = |name: &String| name.len() > 1 && name.starts_with('-');
        let (before, behind) =
            if inputs.iter().any(is_option) { (Vec::new(), inputs) } else { (inputs, Vec::new()) };
        let mut words = vec![self.work.verb().to_string()];
        words.extend(before);
        words.extend(["-o".to_string(), self.output.clone()]);
        self.add_options(&mut words);
        if !behind.is_empty() {
            words.push("--".into());
            words.extend(behind);
        }
        words
    }

    /// Adds the options that were given. Those that this program does not know are left out.
    fn add_options(&self, words: &mut Vec<String>) {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(self) else { return };
        fields.retain(|name, _| !self.unknown.contains_key(name));
        for said in ["work", "inputs", "output", "join", "keys", "equal", "memory_bytes", "memory_percent"] {
            fields.remove(said);
        }
        let mut set = |name: &str, value: Value| _ = fields.insert(name.to_string(), value);
        let texts = |keys: &[KeyPart]| keys.iter().map(|part| Value::from(part.to_string())).collect();
        set("by", texts(&self.keys));
        set("memory", self.memory.map(size::word).into());
        set("scratch_limit", self.scratch_limit.map(size::word).into());
        set("scratch", self.scratch.iter().map(|path| Value::from(path.display().to_string())).collect());
        set("shares", self.equal.then_some("equal").into());
        match self.work {
            Work::Shuffle(seed) => set("seed", seed.into()),
            Work::Partition { pick, parts, split_keys } => {
                set("parts", parts.into());
                set("pick", pick.name().into());
                set("split_keys", split_keys.into());
            }
            Work::Sort | Work::Merge | Work::Join => {}
        }
        if let Some(right) = &self.right {
            set("type", right.kind.name().into());
            set("right_record", right.layout.record.into());
            set("right_by", texts(&right.keys));
            let is_of_lines = right.layout == RecordForm::default() && right.between != b"\t";
            set("between", is_of_lines.then(|| String::from_utf8_lossy(&right.between)).into());
        }
        for (name, value) in fields {
            let flag = || format!("--{}", name.replace('_', "-"));
            match value {
                Value::Bool(true) => words.push(flag()),
                Value::Number(number) => words.extend([flag(), number.to_string()]),
                Value::String(text) => words.extend([flag(), text]),
                Value::Array(all) => {
                    all.iter().filter_map(Value::as_str).for_each(|text| words.extend([flag(), text.into()]));
                }
                Value::Null | Value::Bool(false) | Value::Object(_) => {}
            }
        }
    }
}

/// A job on records, without the nodes that run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobOptions {
    /// What nodes do with the records. Paths are strings with escapes; the nodes' own inputs are shell patterns.
    #[serde(flatten)]
    pub spec: WorkSpec,
    /// Whether each node has its own inputs; otherwise all read the same.
    pub own_inputs: bool,
    /// Whether the client serves the inputs to all nodes.
    #[serde(default)]
    pub lent_inputs: bool,
    /// Whether each node writes its range to its own output; otherwise all write to the same one.
    pub own_output: bool,
    /// Whether the client makes and names the output, which nodes write to through it, or in a volume.
    #[serde(default)]
    pub lent_output: bool,
    /// The volumes of its files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<JobVolume>,
}

impl JobOptions {
    /// Whether the client serves a file and therefore has to stay.
    pub fn lends(&self) -> bool {
        self.lent_inputs || self.lent_output
    }

    /// Whether all write to one file, which one of them creates.
    pub fn writes_shared(&self) -> bool {
        !self.writes_own() && !self.lent_output
    }

    /// Whether each node writes its own files: its range, or its parts.
    pub fn writes_own(&self) -> bool {
        self.own_output || matches!(self.spec.work, Work::Partition { .. })
    }

    /// The words of the command, for lists of jobs.
    pub fn words(&self) -> Vec<String> {
        let own = |own: bool| {
            move |word: &String| Ok::<_, Infallible>(if own { format!("nodes:{word}") } else { word.clone() })
        };
        let Ok(spec) = self.spec.try_map(own(self.own_inputs), own(self.own_output), |layout| *layout);
        spec.words()
    }
}

/// Whether an option was not given.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Sizes: a number of bytes, or text for a percentage.
mod size {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;
    use thalweg_base::units::Size;

    /// The size as people write it: `64MiB`, `100`, `50%`.
    pub(super) fn word(size: Size) -> String {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match size {
            Size::Percent(percent) => format!("{percent}%"),
            Size::Bytes(bytes) => {
                match units.iter().find(|(bits, _)| bytes > 0 && bytes.trailing_zeros() >= *bits) {
                    Some((bits, unit)) => format!("{}{unit}", bytes >> bits),
                    None => bytes.to_string(),
                }
            }
        }
    }

    pub(super) fn value(size: Size) -> Value {
        match size {
            Size::Bytes(bytes) => bytes.into(),
            Size::Percent(percent) => format!("{percent}%").into(),
        }
    }

    pub(super) fn serialize<S: Serializer>(size: &Option<Size>, to: S) -> Result<S::Ok, S::Error> {
        size.map(value).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
        let size = |value: Value| match value {
            Value::String(text) => text.parse::<Size>().ok(),
            value => value.as_u64().map(Size::Bytes),
        };
        let wrong = || serde::de::Error::custom("a size is a number of bytes or a percentage");
        Option::<Value>::deserialize(from)?.map(|value| size(value).ok_or_else(wrong)).transpose()
    }
}

/// Memory has two fields.
mod memory {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use thalweg_base::units::Size;

    #[derive(Serialize, Deserialize)]
    struct Fields {
        memory_bytes: Option<u64>,
        #[serde(default)]
        memory_percent: Option<f64>,
    }

    pub(super) fn serialize<S: Serializer>(size: &Option<Size>, to: S) -> Result<S::Ok, S::Error> {
        let (memory_bytes, memory_percent) = match *size {
            Some(Size::Percent(percent)) => (None, Some(percent)),
            Some(Size::Bytes(bytes)) => (Some(bytes), None),
            None => (None, None),
        };
        Fields { memory_bytes, memory_percent }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
        let Fields { memory_bytes, memory_percent } = Fields::deserialize(from)?;
        Ok(memory_percent.map(Size::Percent).or(memory_bytes.map(Size::Bytes)))
    }
}

/// Paths, as strings with escapes.
mod paths {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};
    use thalweg_base::escape::{escaped, unescaped};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| escaped(path.as_os_str().as_bytes())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let path = |word: &String| unescaped(word).map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
        let paths: Option<Vec<PathBuf>> = Vec::<String>::deserialize(from)?.iter().map(path).collect();
        paths.ok_or_else(|| serde::de::Error::custom("a path has escapes for what is not printable"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{from_json, to_json};

    #[test]
    fn options_of_older_and_newer_programs_are_read() {
        let old = r#"{"work":"sort","inputs":["in"],"own_inputs":true,"output":"out","own_output":false,"record":100,
            "keys":[[0,10,true]],"unique":true,"memory_bytes":null,"memory_percent":12.5,"scratch":["a%20b"],
            "scratch_limit":5,"threads":2,"join":{"inputs":["r"],"record":null,"keys":[],"kind":"anti","between":"09"}}"#;
        let job: JobOptions = from_json(old).unwrap();
        assert!(job.own_inputs && !job.own_output && job.spec.unique && job.spec.unknown.is_empty());
        assert_eq!(job.spec.layout, RecordForm { record: Some(100), prefixed: false });
        assert_eq!(job.spec.keys, [KeyPart { offset: 0, length: 10, descending: true }]);
        assert_eq!(
            (job.spec.memory, job.spec.scratch_limit),
            (Some(Size::Percent(12.5)), Some(Size::Bytes(5)))
        );
        assert_eq!(job.spec.scratch, [PathBuf::from("a b")]);
        assert_eq!(from_json::<JobOptions>(&to_json(&job)).unwrap(), job);
        let new = old.replacen('{', r#"{"stable":true,"#, 1);
        let job: JobOptions = from_json(&new).unwrap();
        assert_eq!(job.spec.not_known(), "stable");
        let of_right = old.replacen(r#""kind":"#, r#""sta\nble":1,"kind":"#, 1);
        let job: JobOptions = from_json(&of_right).unwrap();
        assert_eq!(job.spec.not_known(), r"sta\nble", "a name of another host stays on its line");
        assert!(job.words().iter().all(|word| !word.contains("ble")));
        assert!(from_json::<JobOptions>(&old.replace("a%20b", "a b")).is_err());
    }

    #[test]
    fn what_is_not_given_is_not_sent() {
        let spec =
            WorkSpec::new(Work::Sort, vec!["in".to_string()], "out".to_string(), RecordForm::default());
        let sent = to_json(&spec);
        for name in ["prefixed", "header", "resume", "io", "no_proof"] {
            assert!(!sent.contains(name), "{sent}");
        }
    }

    #[test]
    fn the_words_are_those_of_the_command() {
        let words = |spec: &WorkSpec| spec.words().join(" ");
        let of = |work| WorkSpec::new(work, vec!["a".to_string()], "b".to_string(), RecordForm::default());
        assert_eq!(words(&of(Work::Sort)), "sort a -o b");
        let spec = WorkSpec {
            layout: RecordForm { record: Some(100), prefixed: false },
            keys: vec!["0:10".parse().unwrap(), "12:2:desc".parse().unwrap()],
            memory: Some(Size::Percent(50.0)),
            scratch: vec!["x".into(), "y".into()],
            scratch_limit: Some(Size::Bytes(3 << 30)),
            unique: true,
            equal: true,
            io: IoChoice::Uring,
            ..of(Work::Sort)
        };
        assert_eq!(
            words(&spec),
            "sort a -o b --by 0:10 --by 12:2:desc --io uring --memory 50% --record 100 --scratch x --scratch y \
             --scratch-limit 3GiB --shares equal --unique"
        );
        let right = JoinSpec {
            inputs: vec!["r".into()],
            layout: RecordForm::default(),
            keys: vec!["1:1".parse().unwrap()],
            kind: JoinKind::Left,
            ..JoinSpec::default()
        };
        let spec = WorkSpec { right: Some(right.clone()), threads: Some(3), ..of(Work::Join) };
        assert_eq!(words(&spec), "join a r -o b --right-by 1:1 --threads 3 --type left");
        let right = JoinSpec { inputs: vec!["--unique".into()], between: b", ".to_vec(), ..right };
        let spec = WorkSpec { right: Some(right), ..of(Work::Join) };
        assert_eq!(words(&spec), "join -o b --between ,  --right-by 1:1 --type left -- a --unique");
        assert_eq!(words(&of(Work::Shuffle(7))), "shuffle a -o b --seed 7");
        let parts = Work::Partition { pick: PartitionPick::Hash, parts: 4, split_keys: false };
        assert_eq!(words(&of(parts)), "partition a -o b --parts 4 --pick hash");
    }

    #[test]
    fn keys_are_read() {
        assert_eq!("0:10".parse(), Ok(KeyPart { offset: 0, length: 10, descending: false }));
        assert_eq!("4:2:desc".parse(), Ok(KeyPart { offset: 4, length: 2, descending: true }));
        assert_eq!("4:2:asc".parse(), Ok(KeyPart { offset: 4, length: 2, descending: false }));
        assert!("0:4294967295:desc".parse::<KeyPart>().is_ok(), "the whole of any line");
        assert_eq!(
            "3:4294967295".parse(),
            Ok(KeyPart { offset: 3, length: u32::MAX - 3, descending: false })
        );
        for text in ["", "1", "1:", "1:0", "a:1", "1:2:up", "1:2:desc:3", "4294967295:1"] {
            assert!(text.parse::<KeyPart>().is_err(), "{text}");
        }
    }
}
