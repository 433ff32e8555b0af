//! The text of a command that is the same in every run: without times, rates, memory and process ids.

use std::path::Path;

use serde_json::Value;

/// Names of JSON fields, or the last words of names, whose values differ from run to run or between machines.
const UNSTEADY: &[&str] = &[
    "seconds",
    "per_second",
    "peak_bytes",
    "huge_page_bytes",
    "cached_bytes",
    "cached_input_bytes",
    "direct_bytes",
    "pid",
    "port",
    "clocks_per_byte",
    "clock_hz",
    "completions",
    "bytes_per_completion",
    "backend",
    "fallback",
    "direct_output",
    "bottleneck",
    "hardware",
    "stages",
    "version",
    "job",
    "since",
    "address",
    "link_bytes",
    "sent_bytes",
    "received_bytes",
    "rates",
    "scratch_bytes",
    "limit_bytes",
    "at",
];

/// Units: a number before one of them differs from run to run.
const UNITS: &[&str] = &["s", "ms", "us", "B/s", "kB/s", "MB/s", "GB/s", "CPU-s"];

/// The first words of lines of a receipt that describe this run or machine, not the records.
const OF_MACHINE: &[&str] =
    &["stages", "disk", "io", "memory", "slowest", "ends", "limit", "rates", "link", "nodes"];

/// A text as it is recorded, with names for these directories.
pub(crate) fn steady(text: &str, places: &[(&Path, &str)]) -> String {
    let named = |text: String, (path, name): &(&Path, &str)| text.replace(&path.display().to_string(), name);
    let text = places.iter().fold(text.to_string(), named);
    text.lines().map(|line| line_of(line) + "\n").collect()
}

fn line_of(line: &str) -> String {
    if let Ok(mut value) = serde_json::from_str::<Value>(line)
        && value.is_object()
    {
        prune(&mut value);
        return value.to_string();
    }
    let first = line.split_whitespace().next().unwrap_or_default();
    // Rows of a table of stages or ends, and lines that continue a line about the machine.
    let is_row = line.starts_with("  ") && (line.contains(" s  ") || line.starts_with("        "));
    if OF_MACHINE.contains(&first) && !line.starts_with(' ') || is_row {
        return format!("{}{first} ~", if is_row { "  " } else { "" });
    }
    let mut words: Vec<String> = line.split(' ').map(String::from).collect();
    for i in 0..words.len() {
        let (unit, rest) = words[i].split_at(words[i].trim_end_matches([',', ':', ';', ')']).len());
        if UNITS.contains(&unit) && i > 0 && is_number(&words[i - 1]) {
            words[i] = rest.into();
            words[i - 1] = "~".into();
        }
    }
    // How much has to spill depends on how much memory the process already used.
    if let Some(i) = words.windows(3).position(|words| words == ["of", "scratch", "needed,"])
        && i >= 2
    {
        words.splice(i - 2..i, ["~".into()]);
    }
    words.join(" ")
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Replaces values that differ by `~`.
fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_named = |end: &&str| {
                    name.strip_suffix(*end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
                };
                if UNSTEADY.iter().any(is_named) {
                    *value = Value::String("~".into());
                } else if name == "scratch" {
                    prune_scratch(value);
                } else {
                    prune(value);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(prune),
        _ => {}
    }
}

/// How much is spilled depends on the memory of the process; whether anything is spilled does not.
fn prune_scratch(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.values_mut().filter(|bytes| **bytes != 0).for_each(|bytes| *bytes = Value::String("~".into()));
}
