//! The command `table` on the nodes of a cluster: runs it, shows the result, and determines the exit status.

use std::time::Duration;

use thalweg::table::{
    Answer, Arrange, CAPACITY_BYTES, ClusterOptions, Error, Operation, Records, Result, Table, Tables, text,
};
use thalweg_api::{TableRecord, to_json};
use thalweg_base::clock::Stopwatch;

use crate::failure::{DONE, Failure, WRONG};
use crate::interpret::Show;
use crate::interpret::cluster_tables::{ClusterTablesAsk, Selection, Verb};
use crate::print::{complain, report, say};
use crate::show;

/// How often a status that has to say that a table is safe is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records are printed in batches of at least this many bytes.
const PRINTED_TOGETHER: usize = 64 << 10;

/// Runs the command.
pub(crate) fn perform(
    ClusterTablesAsk { cluster, hex, variant, transport, verb }: ClusterTablesAsk,
    how: Show,
) -> std::result::Result<u8, Failure> {
    let (identity, name) = cluster;
    let tables = Tables::load(&identity, name.as_deref())?;
    let show = Shown { hex, how };
    let options = ClusterOptions { variant, transport, ..ClusterOptions::default() };
    let open = |name: &str| Table::open_with(&tables, name, options);
    match verb {
        Verb::Create(name, capacity, beside) => {
            let entry = tables.create(&name, (capacity, CAPACITY_BYTES), beside)?;
            report(how, || to_json(&entry), || show::table_lines(std::slice::from_ref(&entry)))
        }
        Verb::List => {
            let list = tables.list()?;
            report(how, || to_json(&list), || show::table_list(&list))
        }
        Verb::Status(name, wait) => status(&tables, &name, wait, how),
        Verb::Drop(name) => {
            tables.drop_table(&name)?;
            Ok(DONE)
        }
        Verb::Put(name, records) => {
            let upsert =
                |(key, value): (Vec<u8>, Vec<u8>)| Operation::Upsert { key: key.into(), value: value.into() };
            show.all(&open(&name)?, records.into_iter().map(upsert), |_, _| Ok(true))
        }
        Verb::Update(name, records) => {
            let update =
                |(key, value): (Vec<u8>, Vec<u8>)| Operation::Update { key: key.into(), value: value.into() };
            show.all(&open(&name)?, records.into_iter().map(update), |key, answer| show.done(key, answer))
        }
        Verb::Delete(name, keys) => {
            let delete = |key: Vec<u8>| Operation::Delete { key: key.into() };
            show.all(&open(&name)?, keys.into_iter().map(delete), |key, answer| show.done(key, answer))
        }
        Verb::Get(name, keys) => {
            let get = |key: Vec<u8>| Operation::Get { key: key.into() };
            show.all(&open(&name)?, keys.into_iter().map(get), |key, answer| show.value(key, answer))
        }
        Verb::Arrange(name, arrange) => {
            if let Arrange::Split { to: Some(node), .. } | Arrange::Move { to: node, .. } = &arrange {
                tables.check_node(node)?;
            }
            match open(&name)?.arrange(arrange) {
                Err(why @ Error::Uncertain(_)) => Err(Failure::Uncertain(String::new(), why, "status")),
                done => Ok(done.map(|()| DONE)?),
            }
        }
        Verb::Range(name, selection) => {
            let keys_only = selection.keys_only;
            show.records(range(&open(&name)?, selection), keys_only)
        }
        Verb::Count(name, Selection { interval, condition, .. }) => {
            let count = open(&name)?.count(interval, condition)?;
            report(how, || count.to_string(), || format!("{count}\n"))
        }
    }
}

/// Shows the state of a table, and waits until it is safe, if asked to.
fn status(
    tables: &Tables,
    name: &str,
    wait: Option<Duration>,
    how: Show,
) -> std::result::Result<u8, Failure> {
    let watch = Stopwatch::start();
    let mut status = tables.status(name)?;
    if wait.is_some() && status.table.parity.is_none() {
        return Err(Error::Refused(format!("the table '{name}' has no parity, so it is never safe")).into());
    }
    let is_short = |status: &_| wait.is_some() && !show::is_table_safe(status);
    while is_short(&status) && wait.is_some_and(|wait| watch.seconds() < wait.as_secs_f64()) {
        std::thread::park_timeout(LOOK_EVERY);
        status = tables.status(name)?;
    }
    report(how, || to_json(&status), || show::table_status(&status))?;
    Ok(if status.missing.is_empty() && !is_short(&status) { DONE } else { WRONG })
}

fn range(table: &Table, selection: Selection) -> Records<'_> {
    let Selection { interval, condition, first, descending, keys_only } = selection;
    let mut range = match condition {
        Some(condition) => table.find(interval, condition),
        None => table.range(interval),
    };
    if descending {
        range = range.descending();
    }
    if keys_only {
        range = range.keys_only();
    }
    match first {
        Some(first) => range.limit(first),
        None => range,
    }
}

/// How to show keys and values.
struct Shown {
    hex: bool,
    how: Show,
}

impl Shown {
    /// Submits all operations at once and calls `shows` with the answers in order. `shows` returns whether all is well.
    /// If it is not known of some changes whether they were made, the error says of which.
    fn all(
        &self,
        table: &Table,
        operations: impl Iterator<Item = Operation>,
        shows: impl Fn(&[u8], Answer) -> std::result::Result<bool, Failure>,
    ) -> std::result::Result<u8, Failure> {
        let submit = |operation: Operation| Ok((operation.key().to_vec(), table.submit(operation)?));
        let tickets = operations.map(submit).collect::<Result<Vec<_>>>()?;
        let (mut all_well, mut failed, mut uncertain) = (true, None, Vec::new());
        for (key, ticket) in tickets {
            match ticket.wait() {
                Ok(answer) if failed.is_none() => all_well &= shows(&key, answer)?,
                Ok(_) => {}
                Err(why @ Error::Uncertain(_)) => uncertain.push((self.bytes(&key), why)),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        let more = uncertain.len().saturating_sub(1);
        match (uncertain.into_iter().next(), failed) {
            (Some((key, why)), _) => {
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Err(Failure::Uncertain(format!("'{key}'{more}: "), why, "get"))
            }
            (None, Some(why)) => Err(why.into()),
            (None, None) => Ok(if all_well { DONE } else { WRONG }),
        }
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        if self.hex { text::show_hex(bytes) } else { text::show(bytes) }
    }

    /// The line for a record.
    fn record(&self, key: &[u8], value: &[u8], keys_only: bool) -> String {
        if self.how.json {
            return to_json(&TableRecord { key: text::show_hex(key), value: text::show_hex(value) }) + "\n";
        }
        match keys_only {
            true => self.bytes(key) + "\n",
            false => format!("{}\t{}\n", self.bytes(key), self.bytes(value)),
        }
    }

    fn done(&self, key: &[u8], answer: Answer) -> std::result::Result<bool, Failure> {
        if answer != Answer::Done {
            complain(&format!("there is no record '{}'", self.bytes(key)));
        }
        Ok(answer == Answer::Done)
    }

    fn value(&self, key: &[u8], answer: Answer) -> std::result::Result<bool, Failure> {
        let Answer::Value(Some(value)) = answer else { return self.done(key, Answer::Missing) };
        say(&self.record(key, &value, false), false)?;
        Ok(true)
    }

    fn records(&self, records: Records<'_>, keys_only: bool) -> std::result::Result<u8, Failure> {
        let mut text = String::new();
        for record in records {
            let (key, value) = record?;
            text += &self.record(&key, &value, keys_only);
            if text.len() >= PRINTED_TOGETHER {
                say(&std::mem::take(&mut text), false)?;
            }
        }
        say(&text, false)?;
        Ok(DONE)
    }
}
