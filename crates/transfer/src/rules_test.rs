//! The rules, compared with the real rsync on random trees and patterns.
#![allow(clippy::disallowed_methods)] // Tests create files directly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::PumpChoice;
use thalweg_base::rng::Rng;

use super::*;
use crate::choice::Choice;

const CASES: u64 = 150;

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

/// A tree of files and directories with few different names, so that patterns often match.
fn plant(rng: &mut Rng, at: &Path, depth: u32) {
    std::fs::create_dir_all(at).unwrap();
    for _ in 0..rng.below(5) {
        let path = at.join(pick(
            rng,
            &["a", "b", "ab", "a.o", "b.o", "foo", "bar", "a[b", "x-y", "B", "a\\b", ".h", "7"],
        ));
        if path.exists() {
            continue;
        }
        match rng.below(2) {
            0 if depth < 4 => plant(rng, &path, depth + 1),
            _ => std::fs::write(&path, b"").unwrap(),
        }
    }
}

fn pattern(rng: &mut Rng) -> String {
    let mut text = String::new();
    if rng.below(4) == 0 {
        text.push('/');
    }
    for _ in 0..=rng.below(4) {
        text += pick(
            rng,
            &[
                "a",
                "b",
                "foo",
                "bar",
                "*",
                "**",
                "***",
                "?",
                "/",
                "/",
                ".o",
                "[ab]",
                "[!a]",
                "[^b]*",
                "[a-c]",
                "\\*",
                "\\",
                "[[:upper:]]",
                "[]a]",
                "[a\\]b]",
                "/**",
                "/***",
                "**/",
                "[",
                "-",
                "[x-]",
                "top",
            ],
        );
    }
    if rng.below(4) == 0 {
        text.push('/');
    }
    text
}

/// What rsync would copy, in a dry run.
fn of_rsync(place: &Path, source: &str, rules: &[(String, String)]) -> Option<BTreeSet<PathBuf>> {
    let mut rsync = Command::new("rsync");
    rsync.args(["-rn", "--out-format=%n", "-8"]).env("LC_ALL", "C");
    for (flag, text) in rules {
        rsync.arg(format!("--{flag}={text}"));
    }
    let ran = rsync.arg(source).arg("none/").current_dir(place).output().ok()?;
    assert!(ran.status.success(), "{rules:?}: {ran:?}");
    let text = String::from_utf8(ran.stdout).unwrap();
    // A backslash before # and digits is rsync's escape; the names here have none such.
    let names = text.lines().filter(|line| *line != "./" && !line.starts_with("created directory"));
    Some(names.map(|line| PathBuf::from(line.trim_end_matches('/'))).collect())
}

/// What these rules let through.
fn of_rules(at: &Path, path: &Path, rules: &Rules, all: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let (path, is_dir) = (path.join(entry.file_name()), entry.file_type().unwrap().is_dir());
        if rules.excludes(Side::Source, path.as_os_str().as_encoded_bytes(), is_dir) {
            continue;
        }
        all.insert(path.clone());
        if is_dir {
            of_rules(&entry.path(), &path, rules, all);
        }
    }
}

#[test]
fn the_same_entries_are_copied_as_by_rsync() {
    let place = std::env::temp_dir().join(format!("thalweg-rules-{}", std::process::id()));
    let seeds: Vec<u64> = match std::env::var("THALWEG_SEEDS") {
        Ok(count) => (0..count.parse().unwrap()).collect(),
        Err(_) => (0..CASES).collect(),
    };
    let mut excluded = 0;
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let _ = std::fs::remove_dir_all(&place);
        plant(&mut rng, &place.join("top"), 0);
        let mut typed: Vec<(String, String)> = Vec::new();
        let mut choice = PumpChoice::default();
        for _ in 0..=rng.below(4) {
            let pattern = pattern(&mut rng);
            let (flag, text) = match rng.below(8) {
                0..3 => ("exclude", pattern),
                3 => ("include", pattern),
                4 => ("filter", format!("- {pattern}")),
                5 => (
                    "filter",
                    format!(
                        "{} {pattern}",
                        pick(&mut rng, &["+", "hide,", "show", "H", "include", "exclude"])
                    ),
                ),
                6 => (
                    "filter",
                    format!(
                        "{}_{pattern}",
                        pick(&mut rng, &["-!", "-,!", "+!", "P", "-s", "-r", "+,s", "-p", "S"])
                    ),
                ),
                _ => ("exclude", format!("{}{pattern}", pick(&mut rng, &["+ ", "- "]))),
            };
            match flag {
                "exclude" => choice.exclude(&text),
                "include" => choice.include(&text),
                _ => choice.rules.push(text.clone()),
            }
            typed.push((flag.into(), text));
        }
        let rules = Choice::of(&choice).unwrap_or_else(|why| panic!("seed {seed}: {why}")).rules;
        // Once the directory, under its name, and once what is in it.
        for (source, from) in [("top/", place.join("top")), ("top", place.clone())] {
            let Some(theirs) = of_rsync(&place, source, &typed) else {
                // There is no rsync to compare with; the tests of the command say so.
                return;
            };
            let mut ours = BTreeSet::new();
            of_rules(&from, Path::new(""), &rules, &mut ours);
            assert_eq!(ours, theirs, "seed {seed}, {source}: {typed:?}");
            let mut all = BTreeSet::new();
            of_rules(&from, Path::new(""), &Rules::default(), &mut all);
            excluded += all.len() - ours.len();
        }
    }
    assert!(excluded > 100, "only {excluded} entries were excluded");
    std::fs::remove_dir_all(&place).unwrap();
}

#[test]
fn what_is_no_rule_is_refused_with_the_reason() {
    for (text, why) in [
        ("", "empty"),
        ("- ", "empty"),
        ("-", "pattern"),
        ("x foo", "begins with"),
        ("merge f", "files"),
        (": .rsync-filter", "files"),
        ("-C foo", "modifiers"),
    ] {
        let refused = Rules::default().filter(text).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains(text), "{text}: {refused}");
    }
    let mut rules = Rules::default();
    rules.filter("- a").unwrap();
    rules.filter("!").unwrap();
    assert!(rules.is_empty());
}

/// A pattern from a peer that would take a backtracking matcher for ever.
#[test]
fn no_pattern_takes_long() {
    let mut rules = Rules::default();
    rules.filter(&format!("- {}", "*a".repeat(1000))).unwrap();
    assert!(!rules.excludes(Side::Source, &[b'a'; 999], false));
    assert!(rules.excludes(Side::Source, &[b'a'; 1000], false));
}
