//! What a call asks: keywords of Python, put into an [`Ask`] by the table of options.
//!
//! Invariant: a keyword that the verb does not have, or whose value has the wrong type, is a TypeError; a value that
//! cannot be used is a `UsageError`. Both name the keyword. `None`, `False` and an empty list are as if the keyword was
//! not there.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};
use thalweg::{KeyPart, Layout, WorkOptions};
use thalweg_verbs::{Ask, Command, Flag, Row, Usage, Value, in_python, named, nearest, rows};

use crate::errors;

/// What a verb is asked with these keywords, without its words.
pub(crate) fn asked(verb: &str, options: &Bound<'_, PyDict>) -> PyResult<Ask> {
    let mut ask = Ask::new(command(options.py(), verb)?);
    for (keyword, given) in options {
        let keyword: String = keyword.extract()?;
        let flag = option(verb, &keyword, &ask)?;
        if is_not_there(&given)? {
            continue;
        }
        for value in values(&flag.row, &keyword, &given)? {
            if value.is_empty() && flag.row.is_name() {
                return Err(errors::usage(options.py(), &format!("{keyword}: the name is empty")));
            }
            let set = (flag.set)(&mut ask, &value);
            set.map_err(|why| errors::usage(options.py(), &in_python(&format!("{keyword}: {why}"))))?;
        }
    }
    Ok(ask)
}

/// Whether a value is as if its keyword was not there.
fn is_not_there(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
    let is_false = given.cast::<PyBool>().is_ok_and(|given| !given.is_true());
    Ok(given.is_none() || is_false || (is_list && given.len()? == 0))
}

/// A sort with these keywords, which has no ends: its layout, its key, and what else was asked.
pub(crate) fn asked_of_records(options: &Bound<'_, PyDict>) -> PyResult<(Layout, Vec<KeyPart>, WorkOptions)> {
    let ask = asked("sort", options)?;
    let (layout, keys) = ask.records().map_err(|why| usage(options.py(), &why))?;
    Ok((layout, keys, ask.work))
}

/// The directory of the identity for requests to a cluster, and the name that the cluster must have.
pub(crate) fn cluster_meant(
    py: Python<'_>,
    cluster: Option<OsString>,
    identity: Option<PathBuf>,
) -> PyResult<(PathBuf, Option<String>)> {
    let ask = Ask { cluster, identity, ..Ask::default() };
    ask.cluster_meant().map_err(|why| usage(py, &why))
}

fn usage(py: Python<'_>, Usage(why): &Usage) -> PyErr {
    errors::usage(py, &in_python(why))
}

fn command(py: Python<'_>, verb: &str) -> PyResult<Command> {
    use Command::{Check, Cluster, Doctor, Gen, Job, Join, Merge, Partition, Plan, Pump, Shuffle, Sort};
    let all = [Check, Cluster, Doctor, Gen, Job, Join, Merge, Partition, Plan, Pump, Shuffle, Sort];
    let found = all.into_iter().find(|command| command.name() == verb);
    found.ok_or_else(|| errors::usage(py, &format!("'{verb}' is no verb")))
}

/// The option that a keyword is.
fn option(verb: &str, keyword: &str, ask: &Ask) -> PyResult<&'static Flag<Ask>> {
    let is_of_verb = |row: &Row| ask.command.is_some_and(|command| row.is_of(command));
    let found = named(&keyword.replace('_', "-")).filter(|flag| is_of_verb(&flag.row));
    found.ok_or_else(|| {
        let keywords: Vec<String> =
            rows().filter(|flag| is_of_verb(&flag.row)).map(|flag| flag.row.keyword()).collect();
        let near = nearest(keyword, keywords.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        PyTypeError::new_err(format!("{verb} has no keyword '{keyword}'{hint}"))
    })
}

/// The values of an option, as the command line has them.
fn values(row: &Row, keyword: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<OsString>> {
    let wrong = |wanted: &str| {
        let given = given.repr().map(|text| text.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("{keyword}={given}: give {wanted}"))
    };
    let is_bool = given.is_instance_of::<PyBool>();
    let wanted = match (row.value, row.many) {
        (Value::Switch, _) if is_bool => return Ok(vec![OsString::new()]),
        (Value::Switch, _) => return Err(wrong("True or False")),
        (_, true) if row.is_name() => "a name, or a list of names",
        (_, false) if row.is_name() => "a name",
        (_, true) => "text, or a list of texts",
        (_, false) => "a number or text",
    };
    let one = |given: &Bound<'_, PyAny>| -> Option<OsString> {
        let is_text = given.cast::<PyString>().is_ok() || given.cast::<PyBytes>().is_ok();
        if is_text || given.hasattr("__fspath__").ok()? {
            return os_text(given).ok();
        }
        let is_number = !row.is_name()
            && !is_bool
            && (given.hasattr("__index__").ok()? || given.extract::<f64>().is_ok());
        is_number.then(|| given.str().ok().map(|text| text.to_string().into())).flatten()
    };
    if let Some(value) = one(given) {
        return Ok(vec![value]);
    }
    // A file is a list, too: of its lines.
    if !row.many || is_bool || given.hasattr("read")? {
        return Err(wrong(wanted));
    }
    let all = given.try_iter().map_err(|_| wrong(wanted))?;
    all.map(|item| one(&item?).ok_or_else(|| wrong(wanted))).collect()
}

/// Text, bytes or a path as the system has it.
fn os_text(given: &Bound<'_, PyAny>) -> PyResult<OsString> {
    given.py().import("os")?.call_method1("fsdecode", (given,))?.extract()
}
