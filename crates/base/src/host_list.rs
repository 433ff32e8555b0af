//! Lists of hosts as users type and read them: `n[1-3,7],!n2`.
//!
//! Model: items are separated by commas. An item is a name, `@ROLE`, or either with `!` before it, which leaves hosts
//! out; brackets stand for numbers, as in `r[1-2]n[01-32]`. Zeros before the first number of a range are kept.
//! Invariant: expanding what [`fold`] wrote gives the same names.
//! Non-goals: which hosts there are, and what a role means.

use std::fmt::Display;

/// The most digits of a number in brackets.
const DIGITS_MAX: usize = 9;

/// The items of a list, without brackets. An error names the place; `most` is the most items that there may be.
pub fn expand(text: &str, most: usize) -> Result<Vec<String>, String> {
    let mut items = Vec::new();
    let mut at = 0;
    for item in pieces(text)? {
        let begins = at;
        at += item.len() + 1;
        if item.trim_start_matches('!').is_empty() {
            return Err(wrong(text, begins, "a name is missing; write names with commas between them"));
        }
        let mut made = vec![String::new()];
        let (mut rest, mut place) = (item, begins);
        while let Some((before, behind)) = rest.split_once('[') {
            let (inside, behind) = behind.split_once(']').expect("every bracket was seen to end");
            let numbers = numbers(inside, most)
                .map_err(|(offset, why)| wrong(text, place + before.len() + 1 + offset, why))?;
            if made.len() * numbers.len() > most {
                return Err(wrong(text, begins, format!("{item} is more than {most} hosts")));
            }
            made = made
                .iter()
                .flat_map(|head| numbers.iter().map(move |n| format!("{head}{before}{n}")))
                .collect();
            place += before.len() + inside.len() + 2;
            rest = behind;
        }
        made.iter_mut().for_each(|name| name.push_str(rest));
        items.append(&mut made);
        if items.len() > most {
            return Err(wrong(text, begins, format!("up to here it is more than {most} hosts")));
        }
    }
    Ok(items)
}

/// What stands between the commas that are not in brackets.
fn pieces(text: &str) -> Result<Vec<&str>, String> {
    let (mut pieces, mut begins, mut open) = (Vec::new(), 0, None);
    for (at, c) in text.char_indices() {
        match (c, open) {
            ('[', None) => open = Some(at),
            ('[', Some(_)) => return Err(wrong(text, at, "a [ within brackets")),
            (']', None) => return Err(wrong(text, at, "a ] without a [")),
            (']', Some(_)) => open = None,
            (',', None) => {
                pieces.push(&text[begins..at]);
                begins = at + 1;
            }
            _ => {}
        }
    }
    if let Some(at) = open {
        return Err(wrong(text, at, "the bracket has no end; write ranges as in n[1-3,7]"));
    }
    pieces.push(&text[begins..]);
    Ok(pieces)
}

/// The numbers in brackets, as text. An error has its place in them.
fn numbers(inside: &str, most: usize) -> Result<Vec<String>, (usize, String)> {
    let (mut numbers, mut at) = (Vec::new(), 0);
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |digits: &str| {
            let is_one = !digits.is_empty()
                && digits.len() <= DIGITS_MAX
                && digits.bytes().all(|b| b.is_ascii_digit());
            is_one.then(|| digits.parse::<usize>().expect("it has few digits"))
        };
        let (Some(low), Some(high)) = (number(first), number(last)) else {
            return Err((at, format!("'{range}' is no number and no range; write them as in n[1-3,7]")));
        };
        if high < low {
            return Err((at, format!("the range {range} ends before it begins; write {last}-{first}")));
        }
        if last.starts_with('0') && last.len() != first.len() {
            return Err((at, format!("the range {range} has zeros before its last number only")));
        }
        if high - low >= most {
            return Err((at, format!("{range} is more than {most} hosts")));
        }
        let width = width(first);
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
        at += range.len() + 1;
    }
    Ok(numbers)
}

/// The least digits of the numbers of a range that begins with this one.
fn width(first: &str) -> usize {
    if first.starts_with('0') { first.len() } else { 1 }
}

fn wrong(text: &str, at: usize, why: impl Display) -> String {
    format!("'{text}' at character {}: {why}", text[..at].chars().count() + 1)
}

/// These names as a list with brackets, in the order of each first name.
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut groups: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for name in names {
        let end = name.rfind(|c: char| c.is_ascii_digit()).map_or(0, |last| last + 1);
        let start = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |last| last + 1);
        // More digits than a list may have stay as they are.
        let (start, end) = if end - start > DIGITS_MAX { (0, 0) } else { (start, end) };
        let around = (&name[..start], &name[end..]);
        match groups.iter_mut().find(|(of, _)| *of == around && start < end) {
            Some((_, digits)) => digits.push(&name[start..end]),
            None => groups.push((around, vec![&name[start..end]])),
        }
    }
    let of_group = |((before, behind), mut digits): ((&str, &str), Vec<&str>)| {
        if let [alone] = digits[..] {
            return format!("{before}{alone}{behind}");
        }
        digits.sort_by_key(|digits| (digits.parse::<usize>().unwrap_or(0), digits.len()));
        digits.dedup();
        let mut ranges: Vec<(&str, &str)> = Vec::new();
        for digits in digits {
            let follows = |(first, last): &(&str, &str)| {
                let next = last.parse::<usize>().map_or(0, |last| last + 1);
                format!("{next:0width$}", width = width(first)) == digits
            };
            match ranges.last_mut().filter(|range| follows(range)) {
                Some((_, last)) => *last = digits,
                None => ranges.push((digits, digits)),
            }
        }
        let ranges = ranges
            .iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
        format!("{before}[{}]{behind}", ranges.collect::<Vec<String>>().join(","))
    };
    groups.into_iter().map(of_group).collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const MOST: usize = 100;

    #[test]
    fn brackets_stand_for_numbers() {
        for (text, names) in [
            ("a", "a"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[1-2,7],!n2,@io,!@sort", "n1 n2 n7 !n2 @io !@sort"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[00-01]x,n[007]", "n00x n01x n007"),
            ("r[1-2]n[3-4].x", "r1n3.x r1n4.x r2n3.x r2n4.x"),
            ("!n[1-2]", "!n1 !n2"),
            ("n[099-100]", "n099 n100"),
        ] {
            assert_eq!(expand(text, MOST).map(|names| names.join(" ")), Ok(names.into()), "{text}");
        }
    }

    #[test]
    fn an_error_names_its_place() {
        for (text, at, why) in [
            ("", 1, "a name is missing"),
            ("n1,,n2", 4, "a name is missing"),
            ("n1,!", 4, "a name is missing"),
            ("n[1-3", 2, "no end"),
            ("é,n1]", 5, "a ] without a ["),
            ("n[[1]]", 3, "a [ within"),
            ("n[]", 3, "'' is no number"),
            ("n[1,,2]", 5, "'' is no number"),
            ("n[1,a-b]", 5, "'a-b' is no number"),
            ("r[1]n[1-2-3]", 7, "'1-2-3' is no number"),
            ("n[9999999999]", 3, "is no number"),
            ("n[3-1]", 3, "ends before it begins; write 1-3"),
            ("n[1-03]", 3, "zeros before its last number only"),
            ("n[1-101]", 3, "1-101 is more than 100 hosts"),
            ("a,r[1-20]n[1-20]", 3, "more than 100 hosts"),
            ("n[1-60],m[1-60]", 9, "more than 100 hosts"),
        ] {
            let told = expand(text, MOST).expect_err(text);
            assert!(
                told.starts_with(&format!("'{text}' at character {at}: ")) && told.contains(why),
                "{told}"
            );
        }
        assert_eq!(expand("n[1-100]", MOST).unwrap().len(), 100);
    }

    #[test]
    fn names_are_folded_to_a_list_that_says_the_same() {
        for (names, list) in [
            ("n1", "n1"),
            ("n1 n2 n3 n5", "n[1-3,5]"),
            ("a b", "a,b"),
            ("n9 n10 n11", "n[9-11]"),
            ("n08 n09 n10", "n[08-10]"),
            ("n3 db n1 n2", "n[1-3],db"),
            ("n1 n01", "n[1,01]"),
            ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
            ("n1.x n2.x n2.y", "n[1-2].x,n2.y"),
            ("1 2 n12345678901 n12345678902", "[1-2],n12345678901,n12345678902"),
        ] {
            assert_eq!(fold(names.split(' ')), list);
        }
        let mut rng = Rng::new(38);
        for _ in 0..2000 {
            let one = |rng: &mut Rng| {
                let number = rng.below(120);
                let head = ["n", "r1n", ""][rng.below(3) as usize];
                let width = rng.below(4) as usize;
                format!("{head}{number:0width$}{}", ["", ".x"][rng.below(2) as usize])
            };
            let mut names: Vec<String> = (0..rng.below(30)).map(|_| one(&mut rng)).collect();
            names.push("n1".into());
            let list = fold(names.iter().map(String::as_str));
            let mut again = expand(&list, 1000).unwrap_or_else(|why| panic!("{why}"));
            names.sort_unstable();
            names.dedup();
            again.sort_unstable();
            assert_eq!(again, names, "{list}");
        }
    }
}
