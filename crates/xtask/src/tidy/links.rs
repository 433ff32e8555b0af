//! Links between documents: the file and the heading must exist.
//!
//! Invariant: every relative link of a tracked Markdown file names a tracked file or directory, and what follows `#` is
//! a heading of that file, spelled as GitHub spells it. Non-goal: links to other sites.

use super::finding::Finding;
use crate::tree::{File, Tree};

/// Links whose file or heading does not exist.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, link) in links(&file.text) {
            if let Some(what) = broken(tree, file, link) {
                found.push(Finding { path: file.path.clone(), line, what });
            }
        }
    }
    found
}

/// The targets of `[text](target)` with their lines, outside code blocks.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let sentences = text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    sentences.flat_map(|(i, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(move |(target, _)| (i + 1, target))
    })
}

fn broken(tree: &Tree, from: &File, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let path = if path.is_empty() { from.path.clone() } else { beside(&from.path, path) };
    let folder = format!("{path}/");
    let Some(file) = tree.file(&path) else {
        let is_folder = heading.is_empty() && tree.files.iter().any(|file| file.path.starts_with(&folder));
        return (!is_folder).then(|| format!("'{link}' leads to no file"));
    };
    let is_there = heading.is_empty() || headings(&file.text).any(|there| there == heading);
    (!is_there).then(|| format!("'{link}' leads to no heading of {path}"))
}

/// Resolves a path relative to the directory of a file into a path from the root.
fn beside(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of headings as on GitHub: in lower case, with hyphens and without punctuation.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
