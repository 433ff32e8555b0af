//! Interprets the arguments and flags of `table` for tables on the nodes of a cluster.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use thalweg::table::{Arrange, Beside, CAPACITY, Condition, Duplicates, Interval, Transport, Variant, text};
use thalweg::{Cluster, Endpoint, TablePart, Task, Transfer};

use thalweg_verbs::Usage;

use crate::typed::TypedArgs;

/// A key and its value.
type Record = (Vec<u8>, Vec<u8>);

/// An operation on tables of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterTablesAsk {
    /// The directory of the identity, and the name that the cluster must have.
    pub(crate) cluster: (PathBuf, Option<String>),
    /// Whether keys and values are written in hexadecimal.
    pub(crate) hex: bool,
    /// How the nodes of records are found.
    pub(crate) variant: Variant,
    /// How requests for single records travel.
    pub(crate) transport: Transport,
    pub(crate) verb: Verb,
}

/// The operation.
#[derive(Debug)]
pub(crate) enum Verb {
    /// Creates a table with this name, this many records per bucket, and perhaps an index or parity.
    Create(String, u64, Beside),
    List,
    /// Shows the state, and waits so long until nodes may fail, if asked to.
    Status(String, Option<Duration>),
    Drop(String),
    /// Inserts or replaces these records.
    Put(String, Vec<Record>),
    /// Replaces the values of existing keys.
    Update(String, Vec<Record>),
    Get(String, Vec<Vec<u8>>),
    Delete(String, Vec<Vec<u8>>),
    Range(String, Selection),
    Count(String, Selection),
    /// Splits, merges or moves a bucket.
    Arrange(String, Arrange),
}

/// The records to read from a table, and in which form.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) interval: Interval,
    pub(crate) condition: Option<Condition>,
    pub(crate) first: Option<u64>,
    pub(crate) descending: bool,
    pub(crate) keys_only: bool,
}

/// `table WHAT`, except `table serve`.
pub(super) fn asked(what: &str, args: TypedArgs) -> Result<ClusterTablesAsk, Usage> {
    check_flags(what, &args)?;
    let cluster = args.ask.cluster_meant()?;
    let hex = args.hex;
    let words = args.ask.words.iter().map(text_of).collect::<Result<Vec<_>, _>>()?;
    let verb = match (what, words.split_first()) {
        ("list", None) => Verb::List,
        ("list", Some(_)) => return Err(Usage("table list takes no words".into())),
        (_, None) => return Err(Usage(format!("table {what} takes the NAME of a table"))),
        ("create" | "status" | "drop", Some((_, [word, ..]))) => {
            return Err(Usage(format!(
                "table {what} takes one word, the NAME of a table, not '{word}' as well"
            )));
        }
        ("create", Some((name, _))) => {
            let beside = Beside { index: args.index, parity: args.parity };
            Verb::Create(name.clone(), args.capacity.unwrap_or(CAPACITY), beside)
        }
        ("status", Some((name, _))) => Verb::Status(name.clone(), args.wait_safe),
        ("drop", Some((name, _))) => Verb::Drop(name.clone()),
        ("put", Some((name, rest))) => Verb::Put(name.clone(), records(what, rest, hex)?),
        ("update", Some((name, rest))) => Verb::Update(name.clone(), records(what, rest, hex)?),
        ("get", Some((name, rest))) => Verb::Get(name.clone(), keys(what, rest, hex)?),
        ("delete", Some((name, rest))) => Verb::Delete(name.clone(), keys(what, rest, hex)?),
        ("split" | "merge" | "move", Some((name, rest))) => {
            Verb::Arrange(name.clone(), arrange(what, rest, hex)?)
        }
        ("count", Some((name, rest))) => Verb::Count(name.clone(), selection(what, rest, &args)?),
        (_, Some((name, rest))) => Verb::Range(name.clone(), selection(what, rest, &args)?),
    };
    let (variant, transport) = (args.variant.unwrap_or_default(), args.transport.unwrap_or_default());
    Ok(ClusterTablesAsk { cluster, hex, variant, transport, verb })
}

/// `table load`: a sort of files into a table.
pub(super) fn load(mut args: TypedArgs) -> Result<(Task, Duplicates), Usage> {
    check_flags("load", &args)?;
    let wrong = || {
        Usage(
            "table load takes the NAME of a table and FILES ('-' is standard input), with --record BYTES and --by \
             OFFSET:LENGTH"
                .into(),
        )
    };
    if args.ask.words.len() < 2 {
        return Err(wrong());
    }
    let table = table_end(&text_of(&args.ask.words.remove(0))?, &args)?;
    let (layout, keys) = args.ask.records()?;
    if layout.fixed_bytes().is_none() || keys.is_empty() {
        return Err(wrong());
    }
    let mut task = Task::sort(args.ask.ends()?, table);
    (task.options.layout, task.options.keys) = (layout, keys);
    if task.options.inputs.iter().any(|input| matches!(input, Endpoint::Nodes(_))) {
        let (identity, name) = args.ask.cluster_meant()?;
        task = task.on(Cluster { identity, name, on: Vec::new() });
    }
    (task.options.memory, task.options.scratch) = (args.ask.work.memory, args.ask.work.scratch);
    Ok((task, args.on_duplicate.unwrap_or_default()))
}

/// `table dump`: a transfer of a table to a file.
pub(super) fn dump(args: &TypedArgs) -> Result<Transfer, Usage> {
    check_flags("dump", args)?;
    match &args.ask.words[..] {
        [name, file] => Ok(Transfer::new([table_end(&text_of(name)?, args)?], Endpoint::from(&**file))),
        _ => Err(Usage("table dump takes the NAME of a table and a FILE ('-' is standard output)".into())),
    }
}

fn table_end(name: &str, args: &TypedArgs) -> Result<Endpoint, Usage> {
    let (identity, cluster) = args.ask.cluster_meant()?;
    Ok(Endpoint::Table(TablePart { name: name.into(), keys: None, identity: Some(identity), cluster }))
}

/// Refuses flags of other `table` subcommands.
fn check_flags(what: &str, args: &TypedArgs) -> Result<(), Usage> {
    let is_of_serve = args.resp.is_some() || args.password_file.is_some();
    let is_of_load = args.ask.form.record.is_some()
        || args.ask.datamation
        || !args.ask.work.keys.is_empty()
        || !args.ask.work.scratch.is_empty()
        || args.on_duplicate.is_some();
    let is_of_ranges = args.first.is_some() || args.descending || args.keys_only;
    let wrong = [
        (is_of_serve, "--resp and --password-file are for table serve", false),
        (args.ask.work.memory.is_some(), "--memory is for table serve and load", what == "load"),
        (
            is_of_load,
            "--record, --by, --datamation, --scratch and --on-duplicate are for table load",
            what == "load",
        ),
        (
            args.capacity.is_some() || args.index || args.parity.is_some(),
            "--capacity, --index and --parity are for table create",
            what == "create",
        ),
        (args.wait_safe.is_some(), "--wait-safe is for table status", what == "status"),
        (
            args.variant.is_some(),
            "--variant is for the records of a table",
            matches!(what, "put" | "update" | "get" | "delete" | "range" | "find" | "count"),
        ),
        (
            args.transport.is_some(),
            "--transport is for table put, update, get and delete",
            matches!(what, "put" | "update" | "get" | "delete"),
        ),
        (
            is_of_ranges,
            "--first, --descending and --keys-only are for table range and find",
            matches!(what, "range" | "find"),
        ),
        (args.condition.is_some(), "--where is for table find and count", matches!(what, "find" | "count")),
    ];
    match wrong.iter().find(|(is_given, _, fits)| *is_given && !fits) {
        Some((_, why, _)) => Err(Usage(format!("{why}, not for table {what}"))),
        None if what == "find" && args.condition.is_none() => {
            Err(Usage("table find needs --where CONDITION, as in --where contains:X".into()))
        }
        None => Ok(()),
    }
}

fn text_of(word: &OsString) -> Result<String, Usage> {
    let text = word.to_str().map(String::from);
    text.ok_or_else(|| {
        Usage(format!("'{}' is not readable text; write \\xHH for other bytes", word.to_string_lossy()))
    })
}

fn bytes(word: &str, hex: bool) -> Result<Vec<u8>, Usage> {
    parsed(word, hex).map_err(Usage)
}

fn parsed(word: &str, hex: bool) -> Result<Vec<u8>, String> {
    if hex { text::parse_hex(word) } else { text::parse(word) }
}

fn keys(what: &str, words: &[String], hex: bool) -> Result<Vec<Vec<u8>>, Usage> {
    if words.is_empty() {
        return Err(Usage(format!("table {what} takes the NAME of a table and at least one KEY")));
    }
    words.iter().map(|word| bytes(word, hex)).collect()
}

fn records(what: &str, words: &[String], hex: bool) -> Result<Vec<Record>, Usage> {
    if words.is_empty() || !words.len().is_multiple_of(2) {
        return Err(Usage(format!(
            "table {what} takes the NAME of a table, then KEY and VALUE, as often as you like"
        )));
    }
    words.chunks_exact(2).map(|pair| Ok((bytes(&pair[0], hex)?, bytes(&pair[1], hex)?))).collect()
}

/// `split NAME KEY [NODE]`, `merge NAME KEY` or `move NAME KEY NODE`.
fn arrange(what: &str, words: &[String], hex: bool) -> Result<Arrange, Usage> {
    let key = |word: &String| bytes(word, hex).map(Into::into);
    match (what, words) {
        ("split" | "merge", [first, ..]) if first.is_empty() => Err(Usage(format!(
            "table {what} takes a KEY that is not empty; the first bucket has none before it"
        ))),
        ("split", [first]) => Ok(Arrange::Split { key: key(first)?, to: None }),
        ("split", [first, to]) => Ok(Arrange::Split { key: key(first)?, to: Some(to[..].into()) }),
        ("merge", [first]) => Ok(Arrange::Merge { key: key(first)? }),
        ("move", [first, to]) => Ok(Arrange::Move { key: key(first)?, to: to[..].into() }),
        ("split", _) => Err(Usage(
            "table split takes NAME, the KEY where the new bucket begins, and a NODE for it if you like"
                .into(),
        )),
        ("merge", _) => {
            Err(Usage("table merge takes NAME, and the KEY where the bucket to merge begins".into()))
        }
        _ => Err(Usage("table move takes NAME, a KEY of the bucket, and the NODE that gets it".into())),
    }
}

fn selection(what: &str, words: &[String], args: &TypedArgs) -> Result<Selection, Usage> {
    let interval = match words {
        [] => Interval::all(),
        [word] => Interval::parse(word, |key| parsed(key, args.hex)).map_err(Usage)?,
        _ => {
            return Err(Usage(format!(
                "table {what} takes the NAME of a table, and LOW..HIGH if not all keys are meant"
            )));
        }
    };
    let condition = args.condition.as_ref().map(|condition| {
        Condition::parse(&bytes(condition, args.hex)?).map_err(|why| Usage(why.to_string()))
    });
    Ok(Selection {
        interval,
        condition: condition.transpose()?,
        first: args.first,
        descending: args.descending,
        keys_only: args.keys_only,
    })
}
