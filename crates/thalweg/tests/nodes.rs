//! Work on several nodes inside this process: the same bytes as on one node, whatever the keys, and nothing left of
//! refused work.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

#[path = "../../engine/tests/place/mod.rs"]
mod place;

use place::Place;
use thalweg::{
    Endpoint, Error, JoinKind, KeyPart, Layout, PartitionPick, Progress, Receipt, Result, RightSide, Size,
    Task, Work, WorkOptions,
};
use thalweg_api::Proof;

const KEY: KeyPart = KeyPart { offset: 0, length: 4, descending: false };

fn options(place: &Place, inputs: &[&str], layout: Layout, keys: &[KeyPart]) -> WorkOptions {
    let inputs = inputs.iter().map(|name| place.end(name)).collect();
    WorkOptions {
        keys: keys.to_vec(),
        memory: Some(Size::Bytes(1 << 30)),
        threads: Some(2),
        ..WorkOptions::new(Work::Sort, inputs, place.end("out"), layout)
    }
}

fn run(options: &WorkOptions, nodes: usize) -> Result<Receipt> {
    let task = Task { options: options.clone(), nodes: Some(nodes), cluster: None };
    task.run(&Progress::default())
}

fn made(place: &Place, options: &WorkOptions, nodes: usize) -> (Vec<u8>, Receipt) {
    let receipt = run(options, nodes).unwrap();
    assert!(receipt.holds, "{receipt:?}");
    (place.read("out"), receipt)
}

/// Checks that one, two, three and five nodes produce the same.
#[track_caller]
fn all_agree(place: &Place, options: &WorkOptions) {
    let (expected, alone) = made(place, options, 1);
    for nodes in [2, 3, 5] {
        let (output, receipt) = made(place, options, nodes);
        assert!(output == expected, "{nodes} nodes make something else");
        // The order of a shuffle's output says nothing.
        let shuffled = |proof: Proof| match options.work {
            Work::Shuffle(_) => Proof { unordered: 0, duplicates: 0, ..proof },
            _ => proof,
        };
        let proofs = |receipt: &Receipt| [receipt.input, receipt.output].map(shuffled);
        assert_eq!(proofs(&receipt), proofs(&alone), "{nodes} nodes");
        assert_eq!((receipt.dropped, &receipt.sides), (alone.dropped, &alone.sides), "{nodes} nodes");
        assert_eq!((receipt.input_file_bytes, &receipt.verb), (alone.input_file_bytes, &alone.verb));
        assert!(receipt.nodes.is_empty(), "{receipt:?}");
    }
}

/// Records of 100 bytes that contain their position, each with one of `keys` keys, of which the first are more
/// frequent.
fn records(count: u64, keys: u64) -> Vec<u8> {
    let record = |i: u64| {
        let drawn = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let key = drawn % keys * (drawn >> 8) % keys * ((drawn >> 16) % 3 / 2);
        format!("{key:04}{i:095}\n").into_bytes()
    };
    (0..count).flat_map(record).collect()
}

#[test]
fn any_number_of_nodes_makes_what_one_does() {
    let place = Place::new();
    place.write("a", &records(60_000, 5000));
    place.write("b", &records(20_001, 7));
    let fixed = options(&place, &["a", "b"], Layout::Fixed(100), &[KEY]);
    all_agree(&place, &fixed);
    all_agree(&place, &WorkOptions { unique: true, ..fixed });
    all_agree(&place, &options(&place, &["b", "a"], Layout::Lines, &[KEY]));
    let shuffle = WorkOptions { work: Work::Shuffle(7), ..options(&place, &["a", "b"], Layout::Lines, &[]) };
    all_agree(&place, &shuffle);
    assert_eq!(place.names(), ["a", "b", "out"]);
}

/// Records that begin with their length: only the record before shows where one begins.
#[test]
fn prefixed_records_stay_whole() {
    let place = Place::new();
    let prefixed = |i: usize| {
        let record =
            format!("k{:03}-{i}-{}", i * 7919 % 500, "x".repeat(if i == 77 { 300_000 } else { i % 90 }));
        [&(record.len() as u32).to_le_bytes(), record.as_bytes()].concat()
    };
    place.write("a", &(0..20_000).flat_map(prefixed).collect::<Vec<u8>>());
    place.write("b", &(0..9_000).flat_map(prefixed).collect::<Vec<u8>>());
    let asked = options(&place, &["a", "b"], Layout::Prefixed, &[KEY]);
    all_agree(&place, &asked);
    all_agree(&place, &WorkOptions { unique: true, ..asked.clone() });
    place.write("b", &prefixed(3)[..9]);
    let told = run(&asked, 2).unwrap_err().to_string();
    assert!(
        told.ends_with("b ends inside the record at byte 0, after 9 bytes of it; it is cut off"),
        "{told}"
    );
}

#[test]
fn inputs_in_order_are_merged() {
    let place = Place::new();
    for (name, count) in [("a", 60_000), ("b", 20_001), ("none", 0)] {
        let mut sorted = records(count, 5000);
        sorted.as_chunks_mut::<100>().0.sort_by(|a, b| a[..4].cmp(&b[..4]));
        place.write(name, &sorted);
    }
    let asked = options(&place, &["a", "b", "none"], Layout::Fixed(100), &[KEY]);
    let merge = WorkOptions { work: Work::Merge, ..asked };
    all_agree(&place, &merge);
    all_agree(&place, &WorkOptions { unique: true, ..merge.clone() });
    std::fs::remove_file(place.at("out")).unwrap();
    place.write("b", &records(1000, 5000));
    let told = run(&merge, 3).unwrap_err().to_string();
    assert!(told.contains("b is not in order"), "{told}");
    assert_eq!(place.names(), ["a", "b", "none"]);
}

#[test]
fn records_of_two_sides_meet() {
    let place = Place::new();
    place.write("left", &records(30_000, 500));
    place.write("right", &records(400, 900));
    for kind in [JoinKind::Inner, JoinKind::Left, JoinKind::Anti] {
        let right = RightSide {
            inputs: vec![place.end("right")],
            layout: Layout::Fixed(100),
            keys: vec![KEY],
            kind,
            between: b", ".to_vec(),
            ..RightSide::default()
        };
        let asked = options(&place, &["left"], Layout::Fixed(100), &[KEY]);
        all_agree(&place, &WorkOptions { work: Work::Join, right: Some(right), ..asked });
    }
    assert_eq!(place.names(), ["left", "out", "right"]);
}

/// More nodes than parts, and more parts than nodes.
#[test]
fn parts_are_those_of_one_node() {
    let place = Place::new();
    place.write("in", &records(60_000, 5000));
    for (pick, parts) in [(PartitionPick::Hash, 3), (PartitionPick::Hash, 16), (PartitionPick::Range, 4)] {
        let mut asked = options(&place, &["in"], Layout::Fixed(100), &[KEY]);
        asked.work = Work::Partition { pick, parts, split_keys: false };
        asked.output = place.end("part-{}");
        let width = (parts - 1).to_string().len();
        let parted = |nodes: usize| {
            let receipt = run(&asked, nodes).unwrap();
            assert!(receipt.holds && receipt.nodes.is_empty(), "{receipt:?}");
            let read = |part: usize| place.read(&format!("part-{part:0width$}"));
            let files: Vec<Vec<u8>> = (0..parts).map(read).collect();
            let told = receipt.partition.unwrap();
            for (part, file) in told.parts.iter().zip(&files) {
                assert_eq!(part.file_bytes, file.len() as u64, "{part:?}");
            }
            (files, told.parts.iter().map(|part| part.path.clone()).collect::<Vec<String>>())
        };
        let expected = parted(1);
        for nodes in [2, 5] {
            let (files, paths) = parted(nodes);
            assert_eq!(paths, expected.1, "{pick:?} on {nodes} nodes");
            if pick == PartitionPick::Hash {
                assert!(files == expected.0, "{parts} parts of {nodes} nodes are others");
                continue;
            }
            // Split points come from other samples.
            let keys = |file: &Vec<u8>| file.chunks(100).map(|r| r[..4].to_vec()).collect::<Vec<_>>();
            let most = |file: &Vec<u8>| keys(file).into_iter().max();
            let least = |file: &Vec<u8>| keys(file).into_iter().min();
            assert!(files.windows(2).all(|two| most(&two[0]) < least(&two[1])), "{nodes} nodes");
            assert_eq!(files.concat().len(), 6_000_000);
        }
        for part in 0..parts {
            std::fs::remove_file(place.at(&format!("part-{part:0width$}"))).unwrap();
        }
        assert_eq!(place.names(), ["in"]);
    }
}

/// Half of a page of 1,024,000 bytes is not a multiple of 4096.
#[test]
fn memory_that_halves_the_pages_of_whole_records_sorts() {
    let place = Place::new();
    place.write("in", &records(100_000, 5000));
    let fixed = options(&place, &["in"], Layout::Fixed(1000), &[KEY]);
    let (expected, _) = made(&place, &fixed, 1);
    for (nodes, mib) in [(5, 200), (2, 60), (8, 300)] {
        let memory = Some(Size::Bytes(mib << 20));
        let (output, _) = made(&place, &WorkOptions { memory, ..fixed.clone() }, nodes);
        assert!(output == expected, "{nodes} nodes in {mib} MiB");
    }
}

#[test]
fn one_key_in_all_records_is_shared_by_all_nodes_and_keeps_the_order() {
    let place = Place::new();
    place.write("in", &records(80_000, 1));
    let asked = options(&place, &["in"], Layout::Fixed(100), &[KEY]);
    all_agree(&place, &asked);
    assert_eq!(place.read("out"), place.read("in"), "equal keys leave in input order");
}

#[test]
fn small_and_odd_inputs_are_no_special_case() {
    let place = Place::new();
    let long = [vec![b'z'; 300_000], vec![b'a'; 100_000]].join(&b'\n');
    for input in [&b""[..], b"one", b"b\na\n", b"\n\n\n", &long] {
        place.write("in", input);
        all_agree(&place, &options(&place, &["in"], Layout::Lines, &[]));
    }
}

#[test]
fn what_does_not_fit_in_a_nodes_memory_is_spilled() {
    let place = Place::new();
    place.write("in", &records(800_000, 5000));
    let asked = options(&place, &["in"], Layout::Fixed(100), &[KEY]);
    let (expected, _) = made(&place, &asked, 1);
    let tight = WorkOptions { memory: Some(Size::Bytes(64 << 20)), ..asked };
    let (output, receipt) = made(&place, &tight, 2);
    assert!(output == expected && receipt.io.scratch.written_bytes > 0, "{receipt:?}");
    assert_eq!(place.names(), ["in", "out"]);
    // Already sorted, so that the first records that a node receives say nothing about the rest; its ranges are known
    // all the same.
    place.write("in", &expected);
    let (output, receipt) = made(&place, &tight, 2);
    let spilled = receipt.io.scratch.written_bytes;
    assert!(output == expected && (1..=expected.len() as u64).contains(&spilled), "{receipt:?}");
    // The stages together report all bytes read and written, each stage its own.
    let [sample, river, last, sync] = &receipt.stages[..] else { panic!("{receipt:?}") };
    assert_eq!(sample.read_bytes + river.read_bytes, receipt.io.input.read_bytes, "{receipt:?}");
    assert_eq!(river.read_bytes, expected.len() as u64, "{receipt:?}");
    assert_eq!((river.written_bytes, last.read_bytes), (spilled, spilled), "{receipt:?}");
    assert_eq!(last.written_bytes, receipt.io.output.written_bytes, "{receipt:?}");
    assert!(receipt.io.output.written_bytes <= expected.len() as u64, "{receipt:?}");
    assert_eq!((sync.read_bytes, sync.written_bytes), (0, 0), "{receipt:?}");
}

/// The remedy named a larger size each time that it was followed.
#[test]
fn the_memory_that_nodes_are_said_to_need_is_what_they_need() {
    let place = Place::new();
    place.write("in", b"b\na\nd\nc\n");
    for nodes in [2, 4, 16, 100] {
        let sort = |mebibytes: u64| {
            let memory = Some(Size::Bytes(mebibytes << 20));
            let asked = options(&place, &["in"], Layout::Lines, &[]);
            run(&WorkOptions { memory, ..asked }, nodes)
        };
        let told = sort(32).unwrap_err().to_string();
        let needed = told.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let needed: f64 = needed.parse().unwrap();
        let needed = if told.contains("GiB;") { (needed * 1024.0).ceil() } else { needed } as u64;
        assert!(sort(needed).is_ok(), "{nodes} nodes in {needed} MiB: {told}");
        assert!(sort(needed - 32).is_err(), "{nodes} nodes do with less than {needed} MiB");
    }
}

/// Pages that were too large for the river's share of the memory left some nodes without ends.
#[test]
fn any_memory_that_is_enough_has_room_for_all_nodes() {
    let place = Place::new();
    place.write("in", b"b\na\nd\nc\n");
    for (nodes, mebibytes) in
        [(2, 64), (2, 112), (2, 128), (3, 96), (3, 256), (4, 144), (4, 320), (8, 256), (8, 512)]
    {
        let memory = Some(Size::Bytes(mebibytes << 20));
        let asked = WorkOptions { memory, ..options(&place, &["in"], Layout::Lines, &[]) };
        assert_eq!(made(&place, &asked, nodes).0, b"a\nb\nc\nd\n", "{nodes} nodes in {mebibytes} MiB");
    }
}

#[test]
fn what_nodes_cannot_do_is_refused_in_one_line() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    let asked = options(&place, &["in"], Layout::Lines, &[]);
    let refusal = |options: &WorkOptions, nodes| match run(options, nodes) {
        Err(Error::Asked(why)) => why.to_string(),
        Err(Error::Memory(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let small = refusal(&WorkOptions { memory: Some(Size::Bytes(32 << 20)), ..asked.clone() }, 4);
    assert!(small.contains("4 nodes need at least 101 MiB"), "{small}");
    let stream = refusal(&WorkOptions { inputs: vec![Endpoint::Standard], ..asked.clone() }, 4);
    assert!(stream.contains("stream"), "{stream}");
    let output = refusal(&WorkOptions { output: Endpoint::Standard, ..asked.clone() }, 4);
    assert!(output.contains("must be a file"), "{output}");
    let nowhere = refusal(&WorkOptions { inputs: vec![Endpoint::Null], ..asked.clone() }, 4);
    assert!(nowhere.contains("is none"), "{nowhere}");
    let many = refusal(&asked, 1000);
    assert!(many.contains("256"), "{many}");
    let again = refusal(&WorkOptions { resume: true, ..asked }, 2);
    assert!(again.contains("cannot resume on several nodes"), "{again}");
    assert_eq!(place.names(), ["in"]);
}
