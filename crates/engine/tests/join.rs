//! Joins with real files, compared with a simple model.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use proptest::prelude::*;
use thalweg_base::rng::Rng;
use thalweg_engine::{
    Endpoint, JoinKind, KeyPart, Layout, Progress, RightSide, Size, Work, WorkOptions, run,
};

const MEMORY: u64 = 64 << 20;

fn part(offset: u32, length: u32) -> KeyPart {
    KeyPart { offset, length, descending: false }
}

fn options(place: &Place, layouts: [Layout; 2], keys: [Vec<KeyPart>; 2], kind: JoinKind) -> WorkOptions {
    let [keys, right_keys] = keys;
    let (inputs, between) = (vec![place.end("right")], b", ".to_vec());
    let right =
        RightSide { inputs, layout: layouts[1], keys: right_keys, kind, between, ..RightSide::default() };
    WorkOptions {
        keys,
        right: Some(right),
        memory: Some(Size::Bytes(MEMORY)),
        threads: Some(2),
        ..WorkOptions::new(Work::Join, vec![place.end("left")], place.end("out"), layouts[0])
    }
}

fn key_of<'r>(keys: &[KeyPart], record: &'r [u8]) -> &'r [u8] {
    let Some(part) = keys.first() else { return record };
    let from = record.len().min(part.offset as usize);
    &record[from..record.len().min((part.offset + part.length) as usize)]
}

/// The expected output.
fn model(sides: [&[Vec<u8>]; 2], options: &WorkOptions) -> Vec<Vec<u8>> {
    let right_side = options.right.as_ref().unwrap();
    let keys = [&options.keys, &right_side.keys];
    let mut sides = sides.map(<[Vec<u8>]>::to_vec);
    for (side, keys) in sides.iter_mut().zip(keys) {
        side.sort_by(|a, b| key_of(keys, a).cmp(key_of(keys, b)));
    }
    let is_line = options.layout == Layout::Lines;
    let mut out = Vec::new();
    for left in &sides[0] {
        let like = |right: &&Vec<u8>| key_of(keys[1], right) == key_of(keys[0], left);
        let matches: Vec<&Vec<u8>> = sides[1].iter().filter(like).collect();
        if right_side.kind != JoinKind::Anti {
            let between = if is_line { &right_side.between[..] } else { b"" };
            out.extend(matches.iter().map(|right| [left, between, right].concat()));
        }
        if right_side.kind != JoinKind::Inner && matches.is_empty() {
            let zeros = match (right_side.kind, right_side.layout) {
                (JoinKind::Left, Layout::Fixed(n)) => vec![0; n as usize],
                _ => Vec::new(),
            };
            out.push([&left[..], &zeros].concat());
        }
    }
    out
}

fn bytes_of(layout: Layout, records: &[Vec<u8>]) -> Vec<u8> {
    let end: &[u8] = if layout == Layout::Lines { b"\n" } else { b"" };
    records.iter().flat_map(|record| [record, end].concat()).collect()
}

fn check(place: &Place, sides: [&[Vec<u8>]; 2], options: &WorkOptions) {
    place.write("left", &bytes_of(options.layout, sides[0]));
    place.write("right", &bytes_of(options.right.as_ref().unwrap().layout, sides[1]));
    let receipt = run(options, &Progress::default()).unwrap();
    let expected = model(sides, options);
    let layout = if options.layout == Layout::Lines { Layout::Lines } else { Layout::Fixed(1) };
    assert!(place.read("out") == bytes_of(layout, &expected), "{options:?}");
    let told = receipt.sides.unwrap();
    assert!(receipt.holds && receipt.output.records == expected.len() as u64, "{receipt:?}");
    assert_eq!([told.left.records, told.right.records], sides.map(|side| side.len() as u64));
    assert_eq!(told.pairs + told.unmatched, receipt.output.records);
    assert_eq!(place.names(), ["left", "out", "right"]);
}

fn random(seed: u64, count: usize, len: impl Fn(&mut Rng) -> usize, letters: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let record = |rng: &mut Rng| {
        let len = len(rng);
        (0..len).map(|_| b'a' + rng.below(letters) as u8).collect()
    };
    (0..count).map(|_| record(&mut rng)).collect()
}

fn kinds() -> impl Strategy<Value = JoinKind> {
    prop_oneof![Just(JoinKind::Inner), Just(JoinKind::Left), Just(JoinKind::Anti)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_join_is_what_the_model_says(
        kind in kinds(), lines in any::<bool>(), letters in 1u64..5, seed in any::<u64>(),
        (left, right) in (0usize..40, 0usize..40),
    ) {
        let place = Place::new();
        let (layouts, keys) = if lines {
            ([Layout::Lines; 2], [vec![part(1, 3)], vec![part(0, 3)]])
        } else {
            ([Layout::Fixed(6), Layout::Fixed(4)], [vec![part(2, 2)], vec![part(0, 2)]])
        };
        let side = |seed, count, n| {
            random(seed, count, move |rng| if lines { rng.below(6) as usize } else { n }, letters)
        };
        let (left, right) = (side(seed, left, 6), side(seed ^ 1, right, 4));
        check(&place, [&left, &right], &options(&place, layouts, keys, kind));
    }
}

/// The right records of the key are 5 MB, and a chunk of the group is 2 MiB.
#[test]
fn a_key_that_fills_both_sides_takes_no_more_memory() {
    let place = Place::new();
    let whole = |seed| random(seed, 2500, |_| 2000, 1).concat();
    let left: Vec<u8> = whole(1).chunks(2000).take(12).flatten().copied().collect();
    place.write("left", &left);
    place.write("right", &whole(2));
    let key = vec![part(0, 8)];
    let options = options(&place, [Layout::Fixed(2000); 2], [key.clone(), key], JoinKind::Inner);
    let receipt = run(&options, &Progress::default()).unwrap();
    assert!(receipt.holds && receipt.output.records == 12 * 2500, "{receipt:?}");
    assert!(receipt.io.scratch.written_bytes > 1_000_000, "the group went to scratch: {:?}", receipt.io);
    assert_eq!(place.names(), ["left", "out", "right"]);
}

#[test]
fn what_cannot_be_joined_is_refused_in_one_line() {
    let place = Place::new();
    place.write("left", b"aaaa");
    place.write("right", b"bbbbbb");
    let fixed = [Layout::Fixed(4), Layout::Fixed(6)];
    let none = || [Vec::new(), Vec::new()];
    let cases = [
        (options(&place, fixed, none(), JoinKind::Inner), "never equal"),
        (
            options(&place, [Layout::Lines, Layout::Fixed(6)], none(), JoinKind::Inner),
            "lines are joined with lines",
        ),
        (
            options(&place, fixed, [vec![part(0, 2)], vec![part(0, 3)]], JoinKind::Inner),
            "as long as each other",
        ),
        (options(&place, fixed, [vec![part(3, 2)], vec![part(0, 2)]], JoinKind::Inner), "reaches byte 5"),
        (
            options(
                &place,
                [Layout::Fixed(3), Layout::Fixed(6)],
                [vec![part(0, 2)], vec![part(0, 2)]],
                JoinKind::Left,
            ),
            "not a multiple",
        ),
        (
            WorkOptions {
                memory: Some(Size::Bytes(20 << 20)),
                ..options(&place, fixed, [vec![part(0, 2)], vec![part(0, 2)]], JoinKind::Inner)
            },
            "a join needs at least",
        ),
    ];
    for (options, expected) in cases {
        let error = run(&options, &Progress::default()).unwrap_err();
        assert!(!error.is_wrong(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains('\n'), "{text}");
        assert_eq!(place.names(), ["left", "right"]);
    }
    assert_ne!(options(&place, fixed, none(), JoinKind::Inner).output, Endpoint::Standard);
}
