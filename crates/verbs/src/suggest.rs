//! Suggests the name that was probably meant.
//!
//! Invariant: the edit distance is at most a third of the typed length, rounded up, so `--x` never suggests `--io`.

/// The nearest of `names`, if it is near enough to suggest.
pub fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near_enough = typed.chars().count().div_ceil(3);
    let scored = names.map(|name| (score(typed, name), name));
    scored
        .filter(|(distance, _)| *distance <= near_enough)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The edit distance, or 0 if the name begins with the typed text and that has at least two bytes.
fn score(typed: &str, name: &str) -> usize {
    if typed.len() >= 2 && name.starts_with(typed) { 0 } else { distance(typed, name) }
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn one text into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["record", "resume", "scratch", "scratch-limit", "memory", "merge", "io", "by"];

    #[test]
    fn slips_find_their_name() {
        for (typed, meant) in [
            ("recrod", "record"),
            ("memroy", "memory"),
            ("scrach", "scratch"),
            ("mem", "memory"),
            ("scratchlimit", "scratch-limit"),
            ("resumee", "resume"),
        ] {
            assert_eq!(nearest(typed, NAMES.iter().copied()), Some(meant), "{typed}");
        }
    }

    #[test]
    fn what_is_far_from_everything_finds_nothing() {
        for typed in ["x", "", "field-separator", "zzzz"] {
            assert_eq!(nearest(typed, NAMES.iter().copied()), None, "{typed}");
        }
    }

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (a, b, d) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 1), ("same", "same", 0)]
        {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }
}
