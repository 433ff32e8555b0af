//! Sorts on several nodes inside this process: the same bytes as on one, whatever the keys, and nothing left of a
//! refused one.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use thalweg_engine::{Endpoint, Error, KeyPart, Layout, Progress, Receipt, Size, Work, WorkOptions};

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

fn sorted(place: &Place, options: &WorkOptions) -> (Vec<u8>, Receipt) {
    let receipt = thalweg_engine::run(options, &Progress::default()).unwrap();
    assert!(receipt.holds, "{receipt:?}");
    (place.read("out"), receipt)
}

/// Looks that one, two, three and five nodes make the same of it.
#[track_caller]
fn all_agree(place: &Place, options: &WorkOptions) {
    let (expected, alone) = sorted(place, options);
    for nodes in [2, 3, 5] {
        let (output, receipt) = sorted(place, &WorkOptions { nodes: Some(nodes), ..options.clone() });
        assert!(output == expected, "{nodes} nodes make something else");
        assert_eq!((receipt.input, receipt.output), (alone.input, alone.output), "{nodes} nodes");
        assert_eq!(receipt.dropped, alone.dropped, "{nodes} nodes");
    }
}

/// Records of 100 bytes that say where they stood, with one of `keys` keys each, more often the first ones.
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
    assert_eq!(place.names(), ["a", "b", "out"]);
}

/// Half of a page of 1 024 000 bytes is no multiple of 4096.
#[test]
fn memory_that_halves_the_pages_of_whole_records_sorts() {
    let place = Place::new();
    place.write("in", &records(100_000, 5000));
    let fixed = options(&place, &["in"], Layout::Fixed(1000), &[KEY]);
    let (expected, _) = sorted(&place, &fixed);
    for (nodes, mib) in [(5, 200), (2, 60), (8, 300)] {
        let memory = Some(Size::Bytes(mib << 20));
        let (output, _) = sorted(&place, &WorkOptions { nodes: Some(nodes), memory, ..fixed.clone() });
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
    let (expected, _) = sorted(&place, &asked);
    let tight = WorkOptions { nodes: Some(2), memory: Some(Size::Bytes(64 << 20)), ..asked };
    let (output, receipt) = sorted(&place, &tight);
    assert!(output == expected && receipt.io.scratch.written_bytes > 0, "{receipt:?}");
    assert_eq!(place.names(), ["in", "out"]);
    // In order already, so that what comes to a node first says nothing of the rest; its ranges are known all the same.
    place.write("in", &expected);
    let (output, receipt) = sorted(&place, &tight);
    let spilled = receipt.io.scratch.written_bytes;
    assert!(output == expected && (1..=expected.len() as u64).contains(&spilled), "{receipt:?}");
    // Stages tell of all that went to and from disks, each of its own.
    let [sample, river, last, sync] = &receipt.stages[..] else { panic!("{receipt:?}") };
    assert_eq!(sample.read_bytes + river.read_bytes, receipt.io.input.read_bytes, "{receipt:?}");
    assert_eq!(river.read_bytes, expected.len() as u64, "{receipt:?}");
    assert_eq!((river.written_bytes, last.read_bytes), (spilled, spilled), "{receipt:?}");
    assert_eq!(last.written_bytes, receipt.io.output.written_bytes, "{receipt:?}");
    assert!(receipt.io.output.written_bytes <= expected.len() as u64, "{receipt:?}");
    assert_eq!((sync.read_bytes, sync.written_bytes), (0, 0), "{receipt:?}");
}

/// The remedy named more at each time that it was followed.
#[test]
fn the_memory_that_nodes_are_said_to_need_is_what_they_need() {
    let place = Place::new();
    place.write("in", b"b\na\nd\nc\n");
    for nodes in [2, 4, 16, 100] {
        let sort = |mebibytes: u64| {
            let memory = Some(Size::Bytes(mebibytes << 20));
            let asked = options(&place, &["in"], Layout::Lines, &[]);
            thalweg_engine::run(&WorkOptions { nodes: Some(nodes), memory, ..asked }, &Progress::default())
        };
        let told = sort(32).unwrap_err().to_string();
        let needed = told.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let needed: f64 = needed.parse().unwrap();
        let needed = if told.contains("GiB;") { (needed * 1024.0).ceil() } else { needed } as u64;
        assert!(sort(needed).is_ok(), "{nodes} nodes in {needed} MiB: {told}");
        assert!(sort(needed - 32).is_err(), "{nodes} nodes do with less than {needed} MiB");
    }
}

/// Pages that were too large for the river's share of it left some nodes without ends.
#[test]
fn any_memory_that_is_enough_has_room_for_all_nodes() {
    let place = Place::new();
    place.write("in", b"b\na\nd\nc\n");
    for (nodes, mebibytes) in
        [(2, 64), (2, 112), (2, 128), (3, 96), (3, 256), (4, 144), (4, 320), (8, 256), (8, 512)]
    {
        let memory = Some(Size::Bytes(mebibytes << 20));
        let asked =
            WorkOptions { nodes: Some(nodes), memory, ..options(&place, &["in"], Layout::Lines, &[]) };
        assert_eq!(sorted(&place, &asked).0, b"a\nb\nc\nd\n", "{nodes} nodes in {mebibytes} MiB");
    }
}

#[test]
fn what_nodes_cannot_do_is_refused_in_one_line() {
    let place = Place::new();
    place.write("in", b"b\na\n");
    let asked = WorkOptions { nodes: Some(4), ..options(&place, &["in"], Layout::Lines, &[]) };
    let refusal = |options: &WorkOptions| match thalweg_engine::run(options, &Progress::default()) {
        Err(Error::Asked(why)) => why.to_string(),
        Err(Error::Memory(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let small = refusal(&WorkOptions { memory: Some(Size::Bytes(32 << 20)), ..asked.clone() });
    assert!(small.contains("too small for 4 nodes") && small.contains("need at least 101 MiB"), "{small}");
    let stream = refusal(&WorkOptions { inputs: vec![Endpoint::Standard], ..asked.clone() });
    assert!(stream.contains("stream"), "{stream}");
    let output = refusal(&WorkOptions { output: Endpoint::Standard, ..asked.clone() });
    assert!(output.contains("must be a file"), "{output}");
    let many = refusal(&WorkOptions { nodes: Some(1000), ..asked });
    assert!(many.contains("256"), "{many}");
    assert_eq!(place.names(), ["in"]);
}
