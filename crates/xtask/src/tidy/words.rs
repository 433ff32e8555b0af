//! One word for one thing: the glossary's words are the code's, and the synonyms that it rules out are not.
//!
//! Reads the table of `docs/GLOSSARY.md`: word, meaning, and in the third column what it is never called.
//! `words.txt` lists where a ruled-out word means something else: `PATH WORD`.

use super::Finding;
use crate::source::Source;
use crate::tree::Tree;

const GLOSSARY: &str = "docs/GLOSSARY.md";
const EXCEPT: &str = "crates/xtask/words.txt";

/// Names of the standard library, which nobody chose here.
const NOT_OURS: &[&str] = &["partition_point", "is_partitioned", "partition_dedup"];

/// Ruled-out words in names and comments.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else {
        return vec![Finding { path: GLOSSARY.into(), line: 0, what: "the glossary is missing".into() }];
    };
    let ruled_out = ruled_out(&glossary.text);
    let except: Vec<(&str, &str)> = match tree.file(EXCEPT) {
        Some(file) => file.text.lines().filter_map(|line| line.split_once(' ')).collect(),
        None => Vec::new(),
    };
    let mut used = vec![false; except.len()];
    let mut found = Vec::new();
    for file in tree.rust() {
        let source = Source::of(&file.text);
        let lines = source.code.lines().zip(source.comments.lines());
        for (i, (code, comment)) in lines.enumerate() {
            for word in words(code).chain(words(comment)) {
                let Some((synonym, instead)) = ruled_out.iter().find(|(synonym, _)| is_it(&word, synonym))
                else {
                    continue;
                };
                match except.iter().position(|pair| *pair == (file.path.as_str(), synonym)) {
                    Some(at) => used[at] = true,
                    None => found.push(Finding {
                        path: file.path.clone(),
                        line: i + 1,
                        what: format!("'{synonym}' is not a word of ours; the glossary says {instead}"),
                    }),
                }
            }
        }
    }
    for ((path, word), _) in except.iter().zip(used).filter(|(_, used)| !used) {
        let what = format!("{path} does not say '{word}'; remove the exception");
        found.push(Finding { path: EXCEPT.into(), line: 0, what });
    }
    found
}

/// Pairs of a word that is ruled out and the one to say instead.
fn ruled_out(glossary: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for line in glossary.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| word")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (word, never) = (cells[1], cells.get(3).copied().unwrap_or(""));
        let synonyms = never.split(',').map(str::trim).filter(|synonym| !synonym.is_empty());
        pairs.extend(synonyms.map(|synonym| (synonym.to_string(), word.trim_matches('*').to_string())));
    }
    pairs
}

/// Whether the word is this one, or several of it.
fn is_it(word: &str, synonym: &str) -> bool {
    word == synonym || word.strip_suffix('s') == Some(synonym)
}

/// The words of names and sentences, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    names.filter(|name| !NOT_OURS.contains(name)).flat_map(split_name)
}

/// `snake_case` and `CamelCase` apart.
fn split_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && lower_before) {
            words.push(String::new());
        }
        lower_before = c.is_lowercase();
        if c != '_' {
            words.last_mut().expect("there is always a word").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_at_their_joints() {
        let found: Vec<String> =
            words("let KeySplitters = split_point(PARTITION_COUNT); x.partition_point(f)").collect();
        assert_eq!(found, ["let", "key", "splitters", "split", "point", "partition", "count", "x", "f"]);
        assert!(
            is_it("splitters", "splitter") && is_it("ingress", "ingress") && !is_it("splitting", "splitter")
        );
    }

    #[test]
    fn the_third_column_is_what_is_ruled_out() {
        let table = "text\n| word | is | never |\n|---|---|---|\n| **cut** | a bound | splitter, pivot |\n| **key** | bytes | |\n";
        let expected = [("splitter", "cut"), ("pivot", "cut")].map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(ruled_out(table), expected);
    }
}
