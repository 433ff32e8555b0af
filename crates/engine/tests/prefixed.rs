//! Prefixed records: every verb treats them like the same records as lines, and refuses a truncated file.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use thalweg_engine::{
    CheckOptions, Endpoint, IoChoice, JoinKind, KeyPart, Layout, PartitionPick, Progress, Result, RightSide,
    Size, Work, WorkOptions, check, run,
};

const KEY: KeyPart = KeyPart { offset: 1, length: 3, descending: false };

/// Lines with few keys that contain their position; some are empty and some longer than any page.
fn lines(count: usize, salt: usize) -> Vec<Vec<u8>> {
    let line = |i: usize| match i * salt % 1009 {
        0 => Vec::new(),
        1 => vec![b'y'; 300_000],
        drawn => format!("k{:03}-{i}-{}", drawn * 7 % 500, "x".repeat(drawn % 90)).into_bytes(),
    };
    (0..count).map(line).collect()
}

fn as_lines(records: &[Vec<u8>]) -> Vec<u8> {
    records.iter().flat_map(|record| [&record[..], b"\n"].concat()).collect()
}

fn as_prefixed(records: &[Vec<u8>]) -> Vec<u8> {
    records.iter().flat_map(|record| [&(record.len() as u32).to_le_bytes()[..], record].concat()).collect()
}

/// The contents of prefixed records.
fn contents(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (record, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        records.push(record.to_vec());
        bytes = rest;
    }
    records
}

/// Two files of lines, and the same records in two files of prefixed ones.
fn inputs(place: &Place) {
    for (name, records) in [("a", lines(20_000, 3)), ("b", lines(9_000, 5))] {
        place.write(&format!("{name}.lines"), &as_lines(&records));
        place.write(&format!("{name}.prefixed"), &as_prefixed(&records));
    }
}

fn options(place: &Place, work: Work, layout: Layout) -> WorkOptions {
    let ending = if layout == Layout::Lines { "lines" } else { "prefixed" };
    let inputs = ["a", "b"].map(|name| place.end(&format!("{name}.{ending}"))).to_vec();
    let output = place.end(if matches!(work, Work::Partition { .. }) { "part-{}" } else { "out" });
    WorkOptions {
        keys: vec![KEY],
        memory: Some(Size::Bytes(256 << 20)),
        threads: Some(2),
        ..WorkOptions::new(work, inputs, output, layout)
    }
}

/// The output, record by record.
fn made(place: &Place, options: &WorkOptions) -> Vec<Vec<u8>> {
    let receipt = run(options, &Progress::default()).unwrap();
    assert!(receipt.holds, "{receipt:?}");
    let names: Vec<String> = match options.work {
        Work::Partition { parts, .. } => (0..parts).map(|part| format!("part-{part}")).collect(),
        _ => vec!["out".into()],
    };
    let bytes: Vec<Vec<u8>> = names.iter().map(|name| place.read(name)).collect();
    assert_eq!(bytes.concat().len() as u64, receipt.output_file_bytes);
    assert_eq!(receipt.input.records, 29_000);
    match options.layout {
        Layout::Lines => {
            bytes.concat().split_inclusive(|b| *b == b'\n').map(|l| l[..l.len() - 1].to_vec()).collect()
        }
        _ => contents(&bytes.concat()),
    }
}

#[test]
fn a_sort_is_that_of_lines() {
    let place = Place::new();
    inputs(&place);
    let expected = made(&place, &options(&place, Work::Sort, Layout::Lines));
    let prefixed = options(&place, Work::Sort, Layout::Prefixed);
    assert!(made(&place, &prefixed) == expected);
    let few = |layout| WorkOptions { unique: true, ..options(&place, Work::Sort, layout) };
    let expected = made(&place, &few(Layout::Lines));
    assert!(made(&place, &few(Layout::Prefixed)) == expected);
}

#[test]
fn a_shuffle_has_all_records_in_another_order() {
    let place = Place::new();
    inputs(&place);
    let asked = WorkOptions { keys: Vec::new(), ..options(&place, Work::Shuffle(7), Layout::Prefixed) };
    let mut records = made(&place, &asked);
    assert!(
        records == made(&place, &WorkOptions { threads: Some(1), ..asked }),
        "the same seed, the same order"
    );
    let mut all = [lines(20_000, 3), lines(9_000, 5)].concat();
    assert!(records != all);
    records.sort();
    all.sort();
    assert!(records == all);
}

#[test]
fn a_merge_is_that_of_lines_and_refuses_what_is_not_in_order() {
    let place = Place::new();
    for (name, mut records) in [("a", lines(20_000, 3)), ("b", lines(9_000, 5))] {
        records.sort_by_key(|record| record.iter().skip(1).take(3).copied().collect::<Vec<u8>>());
        place.write(&format!("{name}.lines"), &as_lines(&records));
        place.write(&format!("{name}.prefixed"), &as_prefixed(&records));
    }
    let expected = made(&place, &options(&place, Work::Merge, Layout::Lines));
    assert!(made(&place, &options(&place, Work::Merge, Layout::Prefixed)) == expected);
    inputs(&place);
    let told =
        run(&options(&place, Work::Merge, Layout::Prefixed), &Progress::default()).unwrap_err().to_string();
    assert!(told.contains("a.prefixed is not in order: record 24 "), "{told}");
}

#[test]
fn parts_hold_all_records_and_by_a_hash_those_of_lines() {
    let place = Place::new();
    inputs(&place);
    let part = |pick| Work::Partition { pick, parts: 5, split_keys: false };
    for threads in [1, 4] {
        let asked =
            |pick, layout| WorkOptions { threads: Some(threads), ..options(&place, part(pick), layout) };
        let expected = made(&place, &asked(PartitionPick::Hash, Layout::Lines));
        assert!(made(&place, &asked(PartitionPick::Hash, Layout::Prefixed)) == expected);
        let mut all = made(&place, &asked(PartitionPick::Robin, Layout::Prefixed));
        all.sort();
        let mut expected = expected;
        expected.sort();
        assert!(all == expected);
        made(&place, &asked(PartitionPick::Range, Layout::Prefixed));
        let key = |record: &Vec<u8>| record.iter().skip(1).take(3).copied().collect::<Vec<u8>>();
        let parts: Vec<Vec<Vec<u8>>> =
            (0..5).map(|i| contents(&place.read(&format!("part-{i}"))).iter().map(key).collect()).collect();
        assert!(parts.iter().all(|part| part.len() > 2000), "parts of about equal size");
        for pair in parts.windows(2) {
            assert!(pair[0].iter().max() < pair[1].iter().min(), "parts are ranges of keys");
        }
    }
}

#[test]
fn a_pair_holds_both_records_with_their_prefixes() {
    let place = Place::new();
    let (left, right) = (lines(3000, 3), lines(150, 5));
    place.write("left", &as_prefixed(&left));
    place.write("right", &as_prefixed(&right));
    let key = |record: &[u8]| record.iter().skip(1).take(3).copied().collect::<Vec<u8>>();
    let mut sides = [left, right];
    sides.iter_mut().for_each(|side| side.sort_by_key(|record| key(record)));
    for kind in [JoinKind::Inner, JoinKind::Left, JoinKind::Anti] {
        let inputs = vec![place.end("right")];
        let right =
            RightSide { inputs, layout: Layout::Prefixed, keys: vec![KEY], kind, ..RightSide::default() };
        let asked = WorkOptions {
            right: Some(right),
            inputs: vec![place.end("left")],
            ..options(&place, Work::Join, Layout::Prefixed)
        };
        let receipt = run(&asked, &Progress::default()).unwrap();
        assert!(receipt.holds, "{receipt:?}");
        let mut expected = Vec::new();
        for left in &sides[0] {
            let matches: Vec<_> = sides[1].iter().filter(|right| key(right) == key(left)).collect();
            if kind != JoinKind::Anti {
                expected.extend(matches.iter().map(|right| vec![left.clone(), right.to_vec()]));
            }
            if kind != JoinKind::Inner && matches.is_empty() {
                expected.push(vec![left.clone()]);
            }
        }
        let nested =
            |pair: &Vec<Vec<u8>>| if kind == JoinKind::Anti { pair[0].clone() } else { as_prefixed(pair) };
        let expected: Vec<Vec<u8>> = expected.iter().map(nested).collect();
        assert!(!expected.is_empty() && contents(&place.read("out")) == expected, "{kind:?}");
    }
}

#[test]
fn a_check_says_of_files_and_pipes_what_a_look_at_all_says() {
    let place = Place::new();
    inputs(&place);
    let asked = |names: &[&str], layout| CheckOptions {
        inputs: names.iter().map(|name| place.end(name)).collect(),
        layout,
        keys: vec![KEY],
        header: 0,
        summary: None,
        merge: false,
        io: IoChoice::Auto,
    };
    let of_lines = check(&asked(&["a.lines", "b.lines"], Layout::Lines), &Progress::default()).unwrap();
    let found = check(&asked(&["a.prefixed", "b.prefixed"], Layout::Prefixed), &Progress::default()).unwrap();
    let counts =
        |check: &thalweg_api::Check| (check.proof.records, check.proof.unordered, check.proof.duplicates);
    assert_eq!(counts(&found), counts(&of_lines));
    assert_eq!(found.first_unordered, of_lines.first_unordered);
    let bytes = place.read("a.prefixed").len() + place.read("b.prefixed").len();
    assert_eq!(found.proof.bytes, bytes as u64);
}

/// Every verb with a file that ends inside a record, followed by a complete one.
#[test]
fn a_file_that_is_cut_off_is_refused_with_the_place() {
    let place = Place::new();
    let one = as_prefixed(&[b"kaaa".to_vec(), b"kbbb".to_vec()]);
    place.write("a.prefixed", &[&one[..], &[200, 0, 0, 0, b'k']].concat());
    place.write("b.prefixed", &one);
    let told = |result: Result<()>| {
        let told = result.unwrap_err().to_string();
        assert!(
            told.ends_with(
                "a.prefixed ends inside the record at byte 16, after 5 bytes of it; it is cut off"
            ),
            "{told}"
        );
    };
    let by_hash = Work::Partition { pick: PartitionPick::Hash, parts: 2, split_keys: false };
    for work in [Work::Sort, Work::Shuffle(1), Work::Merge, by_hash] {
        let keys = if matches!(work, Work::Shuffle(_)) { Vec::new() } else { vec![KEY] };
        let asked = WorkOptions { keys, ..options(&place, work, Layout::Prefixed) };
        told(run(&asked, &Progress::default()).map(drop));
    }
    let inputs: Vec<Endpoint> = ["a.prefixed", "b.prefixed"].map(|name| place.end(name)).to_vec();
    let (layout, keys) = (Layout::Prefixed, vec![KEY]);
    let asked =
        CheckOptions { inputs, layout, keys, header: 0, summary: None, merge: false, io: IoChoice::Auto };
    told(check(&asked, &Progress::default()).map(drop));
    assert_eq!(place.names(), ["a.prefixed", "b.prefixed"]);
}
