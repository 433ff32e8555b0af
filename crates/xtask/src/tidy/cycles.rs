//! Import cycles in a crate: at most three files, so that each file can be read on its own.
//!
//! An import is a path that begins with `crate`, `super` or a child module and leads to another file of the crate.
//! Items of a crate's root (`lib.rs`, `main.rs`) do not count, and neither do tests.
//! Non-goals: macros, and names that are imported by `*`.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// The most files of one cycle.
const FILES_MAX: usize = 3;

/// For each module of a crate the modules that it imports, as paths without `crate::`.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Cycles that are too large, and exceptions that are no longer needed.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for file in tree.rust() {
        let Some((name, path)) = file.path["crates/".len()..].split_once("/src/") else { continue };
        if let Some(module) = module_of(path) {
            crates.entry(name).or_default().insert(module, code_of(&file.text));
        }
    }
    crates.iter().flat_map(|(name, modules)| check_crate(name, &imports(modules))).collect()
}

fn check_crate(name: &str, imports: &Imports) -> Vec<Finding> {
    let larger = cycles_of(imports).into_iter().filter(|cycle| cycle.len() > FILES_MAX);
    larger
        .map(|cycle| Finding {
            path: format!("crates/{name}/src"),
            line: 0,
            what: format!(
                "{} files import one another, more than {FILES_MAX}: {}",
                cycle.len(),
                cycle.join(", ")
            ),
        })
        .collect()
}

/// The path of a module; `None` for the root of a crate and for files of tests.
fn module_of(path: &str) -> Option<String> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_test = path.ends_with("_test") || path.ends_with("/tests");
    (!is_test && path != "lib" && path != "main").then(|| path.replace('/', "::"))
}

/// The code of a file without its tests.
fn code_of(text: &str) -> String {
    let code = Source::of(text).code;
    let end = code.find("#[cfg(test)]\nmod ").unwrap_or(code.len());
    code[..end].to_string()
}

fn imports(modules: &BTreeMap<String, String>) -> Imports {
    let of = |(module, code): (&String, &String)| {
        let mut to = BTreeSet::new();
        for path in paths(code) {
            let place: Vec<&str> = module.split("::").collect();
            let words: Vec<&str> = path.split("::").collect();
            let up = words.iter().take_while(|word| **word == "super").count();
            let from = match words[0] {
                "crate" => Vec::new(),
                "super" => place[..place.len().saturating_sub(up)].to_vec(),
                _ => place,
            };
            let skipped = if words[0] == "crate" || words[0] == "self" { 1 } else { up };
            let mut full = [&from[..], &words[skipped..]].concat();
            // The longest beginning of the path that is a module.
            while !full.is_empty() && !modules.contains_key(&full.join("::")) {
                full.pop();
            }
            if !full.is_empty() && full.join("::") != *module {
                to.insert(full.join("::"));
            }
        }
        (module.clone(), to)
    };
    modules.iter().map(of).collect()
}

/// Every path in code, with groups expanded: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(code: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut prefixes, mut path) = (BTreeSet::new(), Vec::<String>::new(), String::new());
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let name_len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if name_len > 0 {
            path += &rest[..name_len];
            rest = &rest[name_len..];
            continue;
        }
        if rest.starts_with("::") {
            path += "::";
            rest = &rest[2..];
            continue;
        }
        let whole = prefixes.concat() + &path;
        if whole.contains("::") {
            found.insert(whole.trim_end_matches("::").to_string());
        }
        match c {
            '{' if path.ends_with("::") => prefixes.push(std::mem::take(&mut path)),
            '}' => drop(prefixes.pop()),
            _ => {}
        }
        path.clear();
        rest = &rest[c.len_utf8()..];
    }
    found
}

/// The modules that a module imports, directly or indirectly.
fn reached<'i>(imports: &'i Imports, from: &'i String) -> BTreeSet<&'i String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().filter(|other| seen.insert(*other)));
    }
    seen
}

/// The cycles of more than one module.
fn cycles_of(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|module| (module, reached(imports, module))).collect();
    let cycle = |module: &String| -> Vec<String> {
        let same = reach[module].iter().filter(|other| reach[**other].contains(module));
        same.map(|other| (*other).clone()).collect()
    };
    let all: BTreeSet<Vec<String>> = imports.keys().map(cycle).collect();
    all.into_iter().filter(|cycle| cycle.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let modules = files.iter().map(|(module, code)| (module.to_string(), code.to_string())).collect();
        cycles_of(&imports(&modules))
    }

    #[test]
    fn groups_of_paths_come_apart() {
        let found = paths("use crate::a::{self, b::{C, d}}; x.y(super::e::F::new(), 1);");
        let expected = [
            "crate::a",
            "crate::a::b",
            "crate::a::b::C",
            "crate::a::b::d",
            "crate::a::self",
            "super::e::F::new",
        ];
        assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn files_that_import_one_another_are_a_cycle() {
        let files = [
            ("a", "use crate::b::B;"),
            ("b", "use super::c::{C, D}; mod d;"),
            ("b::d", "fn f() { super::super::c::g() }"),
            ("c", "use crate::{Error, a};"),
            ("e", "use crate::a;"),
        ];
        assert_eq!(cycles_of_of(&files), [["a", "b", "c"]]);
        assert!(cycles_of_of(&files[..3]).is_empty());
        assert_eq!(cycles_of_of(&[("a", "b::f()"), ("a::b", "use super::T;")]), [["a", "a::b"]]);
    }
}
