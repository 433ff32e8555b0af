//! The dataclasses of the Python package for what calls return, generated from the structs of `api`.
//!
//! Model: a module begins with some structs, and has with them all structs that their fields need and no module before
//! has. What a class does besides holding fields is in a class of `_shown.py` with `Shown` behind its name.
//! Non-goal: Rust in general; only what `api` is written in.

use std::collections::BTreeMap;
use std::path::Path;

use crate::lines::GENERATED;

/// The directory of the sources.
const API: &str = "crates/api/src";
/// The base classes with methods.
const SHOWN: &str = "python/thalweg/_shown.py";
/// The modules: name, first line of the docstring, and the structs that they begin with.
const MODULES: &[(&str, &str, &[&str])] = &[
    (
        "results",
        "What verbs return: frozen dataclasses with the fields that the command prints with ``--json``.",
        &["Receipt", "PumpReceipt", "Plan", "ClusterPlan", "Check", "DoctorReport", "Detached"],
    ),
    (
        "reports",
        "What clusters report: their hosts, the commands that these run, and their jobs.",
        &["ExecReport", "JobList", "ClusterReport"],
    ),
];

/// A struct of `api`; an enum has no fields.
#[derive(Default)]
struct Struct {
    doc: String,
    fields: Vec<Field>,
}

#[derive(Clone)]
struct Field {
    name: String,
    doc: String,
    /// The type in Rust.
    of: String,
    /// What `serde` is told of it.
    serde: String,
}

/// The paths and texts of the modules.
pub(crate) fn modules(root: &Path) -> Result<Vec<(String, String)>, String> {
    let structs = structs(root)?;
    let shown = std::fs::read_to_string(root.join(SHOWN)).map_err(|why| format!("{SHOWN}: {why}"))?;
    let mut classes: Vec<(&str, Vec<String>)> = Vec::new();
    for (module, _, first) in MODULES {
        let mut found = Vec::new();
        for name in *first {
            needed(name, &structs, &classes, &mut found)?;
        }
        classes.push((module, found));
    }
    Ok((0..MODULES.len()).map(|at| module(at, &classes, &structs, &shown)).collect())
}

/// Adds a struct, behind those that its fields need.
fn needed(
    name: &str,
    structs: &BTreeMap<String, Struct>,
    before: &[(&str, Vec<String>)],
    found: &mut Vec<String>,
) -> Result<(), String> {
    let is_there = |name: &str, found: &[String]| {
        found.iter().chain(before.iter().flat_map(|(_, names)| names)).any(|there| there == name)
    };
    let Some(this) = structs.get(name) else { return Err(format!("{API} has no struct {name}")) };
    if is_there(name, found) {
        return Ok(());
    }
    for field in flat(this, structs) {
        for inner in names_in(&field.of).filter(|inner| is_class(inner, structs)) {
            needed(inner, structs, before, found)?;
        }
    }
    found.push(name.into());
    Ok(())
}

/// The text of a module.
fn module(
    at: usize,
    classes: &[(&str, Vec<String>)],
    structs: &BTreeMap<String, Struct>,
    shown: &str,
) -> (String, String) {
    let (module, about, _) = MODULES[at];
    let mut body = String::new();
    for name in &classes[at].1 {
        let base = if shown.contains(&format!("class {name}Shown(")) {
            format!("{name}Shown")
        } else {
            "Object".into()
        };
        body += &format!("\n\n@dataclass(frozen=True, kw_only=True)\nclass {name}({base}):\n");
        body += &docstring(&structs[name].doc);
        body.push('\n');
        for field in flat(&structs[name], structs) {
            body += &format!(
                "    {}: {}\n{}",
                keyword(&field.name),
                annotation(&field, structs),
                docstring(&field.doc)
            );
        }
    }
    let uses = |name: &&String| body.contains(&format!(": {name}")) || body.contains(&format!("[{name}"));
    let mut text = format!("# {GENERATED} from {API}.\n\"\"\"{about}\n\n");
    text += "``str()`` of a receipt, a plan or a report is what the command prints. Sizes are in bytes, times in seconds.\n\"\"\"\n\n";
    text += "from __future__ import annotations\n\nfrom dataclasses import dataclass\n\n";
    let objects: Vec<&str> = ["Checksum", "Object"].into_iter().filter(|name| body.contains(name)).collect();
    text += &format!("from thalweg._objects import {}\n", objects.join(", "));
    let shown: Vec<String> =
        classes[at].1.iter().map(|name| format!("{name}Shown")).filter(|name| body.contains(name)).collect();
    text += &format!("from thalweg._shown import {}\n", sorted(shown).join(", "));
    for (other, names) in &classes[..at] {
        let used: Vec<String> = names.iter().filter(uses).cloned().collect();
        text += &format!("from thalweg.{other} import {}\n", sorted(used).join(", "));
    }
    (format!("python/thalweg/{module}.py"), text + &body)
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// The fields of a struct, those of a flattened one included, which are optional.
fn flat(this: &Struct, structs: &BTreeMap<String, Struct>) -> Vec<Field> {
    let mut all = Vec::new();
    for field in &this.fields {
        let inner = names_in(&field.of).find_map(|name| structs.get(name));
        let Some(inner) = inner.filter(|_| field.serde.contains("flatten")) else {
            all.push(field.clone());
            continue;
        };
        all.extend(inner.fields.iter().map(|of| Field {
            of: if of.of.starts_with("Vec<") { of.of.clone() } else { format!("Option<{}>", of.of) },
            serde: "skip_serializing_if".into(),
            ..of.clone()
        }));
    }
    all
}

/// The annotation of a field, and its default if the JSON form leaves it out.
fn annotation(field: &Field, structs: &BTreeMap<String, Struct>) -> String {
    let kind =
        if field.serde.contains("\"hex\"") { "Checksum".to_string() } else { kind(&field.of, structs) };
    let is_left_out = field.serde.contains("skip_serializing_if");
    let default = match &field.of {
        _ if !is_left_out => "",
        of if of.starts_with("Option<") => " = None",
        of if of.starts_with("Vec<") => " = ()",
        of if of == "bool" => " = False",
        _ => " = 0",
    };
    kind + default
}

/// A type in Python.
fn kind(of: &str, structs: &BTreeMap<String, Struct>) -> String {
    let inside = |wrapper: &str| of.strip_prefix(wrapper).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inside("Option<") {
        return format!("{} | None", kind(inner, structs));
    }
    if let Some(inner) = inside("Vec<") {
        return format!("tuple[{}, ...]", kind(inner, structs));
    }
    if let Some(inner) = inside("Box<") {
        return kind(inner, structs);
    }
    if let Some(inner) = of.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        let kinds: Vec<String> = inner.split(", ").map(|of| kind(of, structs)).collect();
        return format!("tuple[{}]", kinds.join(", "));
    }
    match of {
        "bool" => "bool".into(),
        "f64" | "f32" => "float".into(),
        "String" => "str".into(),
        name if is_class(name, structs) => name.into(),
        // The other enums of `api` are words.
        name if name.starts_with(|first: char| first.is_ascii_uppercase()) => "str".into(),
        _ => "int".into(),
    }
}

fn is_class(name: &str, structs: &BTreeMap<String, Struct>) -> bool {
    structs.get(name).is_some_and(|this| !this.fields.is_empty())
}

/// The names in a type.
fn names_in(of: &str) -> impl Iterator<Item = &str> {
    of.split(|c: char| !c.is_alphanumeric()).filter(|name| !name.is_empty())
}

/// The name of a field; a keyword of Python gets an underscore behind it.
fn keyword(name: &str) -> String {
    let is_kept = ["from", "in", "is", "lambda", "pass", "global", "class"].contains(&name);
    format!("{name}{}", if is_kept { "_" } else { "" })
}

/// A docstring in lines of at most 120 characters, with code in two backticks and keywords for flags.
fn docstring(doc: &str) -> String {
    const WIDTH: usize = 120;
    let text = doc.replace("`--", "`").replace('`', "``");
    let mut lines = vec!["    \"\"\"".to_string()];
    for (at, word) in text.split_whitespace().enumerate() {
        let line = lines.last_mut().expect("there is the first");
        if line.chars().count() + word.chars().count() + 4 > WIDTH {
            lines.push(format!("    {word}"));
        } else {
            *line += if at == 0 { "" } else { " " };
            *line += word;
        }
    }
    lines.join("\n") + "\"\"\"\n"
}

/// All structs of `api`, by their names.
fn structs(root: &Path) -> Result<BTreeMap<String, Struct>, String> {
    let mut structs = BTreeMap::new();
    for entry in std::fs::read_dir(root.join(API)).map_err(|why| format!("{API}: {why}"))? {
        let path = entry.map_err(|why| why.to_string())?.path();
        let text = std::fs::read_to_string(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        structs_in(&text, &mut structs);
    }
    Ok(structs)
}

fn structs_in(text: &str, structs: &mut BTreeMap<String, Struct>) {
    let (mut doc, mut serde) = (String::new(), String::new());
    let mut open: Option<(String, Struct)> = None;
    for line in text.lines() {
        let word = line.trim();
        if let Some(more) = word.strip_prefix("///") {
            doc = format!("{doc} {}", more.trim()).trim().to_string();
            continue;
        }
        if word.starts_with("#[") {
            serde += word;
            continue;
        }
        let (said, told) = (std::mem::take(&mut doc), std::mem::take(&mut serde));
        if let Some(rest) = line.strip_prefix("pub struct ") {
            if let (name, true) = (rest.trim_end_matches(" {"), rest.ends_with(" {")) {
                open = Some((name.into(), Struct { doc: said, fields: Vec::new() }));
            }
        } else if let (Some((_, this)), Some(rest)) = (&mut open, word.strip_prefix("pub ")) {
            if let Some((name, of)) = rest.trim_end_matches(',').split_once(": ") {
                this.fields.push(Field { name: name.into(), doc: said, of: of.into(), serde: told });
            }
        } else if line == "}"
            && let Some((name, this)) = open.take()
        {
            structs.insert(name, this);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_is_a_class() {
        let mut structs = BTreeMap::new();
        structs_in(
            "/// One `thing`.\n#[derive(Debug)]\npub struct Thing {\n    /// How many `--parts`.\n    pub from: u64,\n    /// \
             Where.\n    #[serde(default, skip_serializing_if = \"Vec::is_empty\")]\n    pub all: Vec<Other>,\n    \
             /// The sum.\n    #[serde(with = \"hex\")]\n    pub sum: u128,\n    /// How.\n    pub how: Option<Kind>,\n}\n\n\
             /// Other.\npub struct Other {\n    /// X.\n    pub x: (f64, bool),\n}\n",
            &mut structs,
        );
        let classes = vec![("results", vec!["Other".to_string(), "Thing".to_string()])];
        let (_, text) = module(0, &classes, &structs, "class OtherShown(Object):");
        let expected = "class Other(OtherShown):\n    \"\"\"Other.\"\"\"\n\n    x: tuple[float, bool]\n    \"\"\"X.\"\"\"\n\n\n\
            @dataclass(frozen=True, kw_only=True)\nclass Thing(Object):\n    \"\"\"One ``thing``.\"\"\"\n\n    from_: int\n    \
            \"\"\"How many ``parts``.\"\"\"\n    all: tuple[Other, ...] = ()\n    \"\"\"Where.\"\"\"\n    sum: Checksum\n    \
            \"\"\"The sum.\"\"\"\n    how: str | None\n    \"\"\"How.\"\"\"\n";
        assert!(text.ends_with(expected), "{text}");
        let mut found = Vec::new();
        needed("Thing", &structs, &[], &mut found).unwrap();
        assert_eq!(found, ["Other", "Thing"]);
        assert!(needed("Nothing", &structs, &[], &mut found).is_err());
    }
}
