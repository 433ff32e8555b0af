//! Partitions of real files: parts hold what a model predicts, whatever the threads, the memory and the inputs; and
//! with a mechanism of the river broken on purpose, the receipt shows it.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use thalweg_engine::{
    Error, GenOptions, IoChoice, KeyPart, Layout, PartitionPick, Progress, Receipt, Size, Work, WorkOptions,
};

fn options(place: &Place, inputs: &[&str], pick: PartitionPick, parts: usize) -> WorkOptions {
    let inputs = inputs.iter().map(|name| place.end(name)).collect();
    let work = Work::Partition { pick, parts, split_keys: false };
    WorkOptions {
        memory: Some(Size::Bytes(64 << 20)),
        threads: Some(2),
        io: IoChoice::Threads,
        ..WorkOptions::new(work, inputs, place.end("part-{}"), Layout::Lines)
    }
}

fn run(options: &WorkOptions) -> Result<Receipt, Error> {
    thalweg_engine::run(options, &Progress::default())
}

/// The parts, after checking that receipt and files agree.
fn parts(place: &Place, options: &WorkOptions) -> Vec<Vec<u8>> {
    let Work::Partition { parts, .. } = options.work else { panic!("{options:?}") };
    let receipt = run(options).unwrap();
    let made = receipt.partition.unwrap();
    assert!(receipt.holds && made.parts.len() == parts);
    let width = (parts - 1).to_string().len();
    let read = |(i, part): (usize, &thalweg_engine::PartReceipt)| {
        let bytes = place.read(&format!("part-{i:0width$}"));
        assert_eq!(bytes.len() as u64, part.file_bytes);
        bytes
    };
    made.parts.iter().enumerate().map(read).collect()
}

/// Lines of very different lengths, the last without a newline.
fn lines(count: usize, salt: usize) -> Vec<u8> {
    let mut text = Vec::new();
    for i in 0..count {
        let long = if i % 997 == 0 { 70_000 } else { i * salt % 90 };
        text.extend(format!("{:06}-{i}-{salt}", i * 7919 * salt % 1_000_003).bytes());
        text.extend(std::iter::repeat_n(b'x', long));
        text.push(b'\n');
    }
    text.pop();
    text
}

fn split_lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
    lines.pop_if(|line| line.is_empty());
    lines
}

#[test]
fn parts_of_lines_are_the_input_in_order_whatever_the_threads_and_pages() {
    let place = Place::new();
    let (a, b) = (lines(30_000, 3), lines(9_000, 5));
    place.write("a", &a);
    place.write("empty", b"");
    place.write("b", &b);
    let input: Vec<&[u8]> = [split_lines(&a), split_lines(&b)].concat();
    let mut position: std::collections::HashMap<&[u8], Vec<usize>> = std::collections::HashMap::new();
    input.iter().enumerate().for_each(|(i, line)| position.entry(line).or_default().push(i));
    for pick in [PartitionPick::Range, PartitionPick::Hash, PartitionPick::Robin] {
        let mut before = None;
        for (threads, memory) in [(1, 64), (2, 64), (5, 64), (2, 17)] {
            let asked = WorkOptions {
                threads: Some(threads),
                memory: Some(Size::Bytes(memory << 20)),
                ..options(&place, &["a", "empty", "b"], pick, 7)
            };
            let got = parts(&place, &asked);
            let mut all: Vec<&[u8]> = got.iter().flat_map(|part| split_lines(part)).collect();
            for part in &got {
                let places = split_lines(part).into_iter().map(|line| position[line][0]).collect::<Vec<_>>();
                assert!(places.is_sorted(), "{pick:?} on {threads} threads");
            }
            all.sort();
            let mut expected = input.clone();
            expected.sort();
            assert!(all == expected, "{pick:?} on {threads} threads in {memory} MiB");
            if pick == PartitionPick::Range {
                let bound = |part: &Vec<u8>| {
                    let lines = split_lines(part);
                    (lines.iter().min().unwrap().to_vec(), lines.iter().max().unwrap().to_vec())
                };
                let bounds: Vec<_> = got.iter().map(bound).collect();
                assert!(bounds.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            // The same memory gives the same parts; with ranges and hashes, any memory does.
            if memory == 64 {
                assert!(before.get_or_insert(got.clone()) == &got, "{pick:?} on {threads} threads");
            }
        }
    }
}

fn generate(place: &Place, count: u128, skewed: bool) {
    let asked = GenOptions {
        count,
        output: place.end("records"),
        ascii: false,
        skewed,
        start: 0,
        io: IoChoice::Threads,
    };
    thalweg_engine::generate(&asked, &Progress::default()).unwrap();
}

fn datamation(place: &Place, pick: PartitionPick, parts: usize) -> WorkOptions {
    let keys = vec![KeyPart { offset: 0, length: 10, descending: false }];
    WorkOptions { layout: Layout::Fixed(100), keys, ..options(place, &["records"], pick, parts) }
}

#[test]
fn parts_are_equal_within_five_percent_on_skewed_records_too() {
    for skewed in [false, true] {
        let place = Place::new();
        generate(&place, 600_000, skewed);
        for pick in [PartitionPick::Range, PartitionPick::Hash, PartitionPick::Robin] {
            let receipt = run(&datamation(&place, pick, 16)).unwrap();
            let mean = 600_000.0 / 16.0;
            let made = receipt.partition.unwrap();
            let off =
                made.parts.iter().map(|part| (part.records as f64 / mean - 1.0).abs()).fold(0.0, f64::max);
            assert!(off <= 0.05, "{pick:?}, skewed {skewed}: {off}");
        }
    }
}

#[test]
fn a_hot_key_stays_together_unless_it_may_be_split() {
    let place = Place::new();
    let line = |i: u32| format!("{:04}-{i}\n", if i.is_multiple_of(2) { 5000 } else { i % 10_000 });
    place.write("records", (0..80_000).map(line).collect::<String>().as_bytes());
    let keys = vec![KeyPart { offset: 0, length: 4, descending: false }];
    let asked = WorkOptions { keys, ..options(&place, &["records"], PartitionPick::Range, 8) };
    let hot = |part: &[u8]| split_lines(part).iter().any(|line| line.starts_with(b"5000"));
    assert_eq!(parts(&place, &asked).iter().filter(|part| hot(part)).count(), 1);
    let got = parts(
        &place,
        &WorkOptions {
            work: Work::Partition { pick: PartitionPick::Range, parts: 8, split_keys: true },
            ..asked
        },
    );
    assert!(got.iter().filter(|part| hot(part)).count() >= 4);
    let records: Vec<usize> = got.iter().map(|part| split_lines(part).len()).collect();
    assert!(records.iter().all(|&n| (9_500..=10_500).contains(&n)), "{records:?}");
}

#[test]
fn records_that_straddle_pages_and_are_longer_than_batches_come_whole() {
    let place = Place::new();
    for record in [1usize, 7, 4096, 100_003, 1_000_001] {
        let count = 4_000_000 / record;
        let byte = |i: usize| (i * 31 % 251) as u8;
        let bytes: Vec<u8> =
            (0..count * record).map(|i| byte(i / record).wrapping_add((i % record) as u8)).collect();
        place.write("records", &bytes);
        let layout = Layout::Fixed(record as u32);
        let asked = WorkOptions { layout, ..options(&place, &["records"], PartitionPick::Hash, 3) };
        let got = parts(&place, &asked);
        let mut records: Vec<&[u8]> = got.iter().flat_map(|part| part.chunks(record)).collect();
        let mut expected: Vec<&[u8]> = bytes.chunks(record).collect();
        records.sort();
        expected.sort();
        assert!(records == expected, "records of {record} bytes");
    }
}

#[test]
fn a_pipe_is_parted_and_has_no_ranges() {
    let place = Place::new();
    let text = lines(20_000, 3);
    let pipe = place.pipe("pipe");
    let asked = WorkOptions { inputs: vec![pipe], ..options(&place, &[], PartitionPick::Robin, 3) };
    let error = run(&WorkOptions {
        work: Work::Partition { pick: PartitionPick::Range, parts: 3, split_keys: false },
        ..asked.clone()
    })
    .unwrap_err();
    assert!(error.exit_status() == 2 && error.to_string().contains("by hash"), "{error}");
    let path = place.at("pipe");
    let written = text.clone();
    let writer = std::thread::spawn(move || std::fs::write(path, written).unwrap());
    let got = parts(&place, &asked);
    writer.join().unwrap();
    let dealt: Vec<Vec<&[u8]>> = got.iter().map(|part| split_lines(part)).collect();
    for (i, line) in split_lines(&text).into_iter().enumerate() {
        assert!(dealt[i % 3][i / 3] == line, "line {i}");
    }
}

#[test]
fn what_cannot_be_done_is_one_line_and_leaves_nothing() {
    let place = Place::new();
    place.write("records", &[b'x'; 1000]);
    place.write("ragged", &[b'x'; 1050]);
    let asked = datamation(&place, PartitionPick::Hash, 4);
    let ragged = WorkOptions { inputs: vec![place.end("ragged")], ..asked.clone() };
    let no_place = WorkOptions { output: place.end("part"), ..asked.clone() };
    let twice = WorkOptions { output: place.end("{}-{}"), ..asked.clone() };
    let nowhere = WorkOptions { output: place.end("not/{}"), ..asked.clone() };
    let missing = WorkOptions { inputs: vec![place.end("missing")], ..asked.clone() };
    let small = WorkOptions { memory: Some(Size::Bytes(1 << 20)), ..asked.clone() };
    let none = WorkOptions {
        work: Work::Partition { pick: PartitionPick::Hash, parts: 0, split_keys: false },
        ..asked
    };
    for (asked, words) in [
        (ragged, "50 left over"),
        (no_place, "must have {}"),
        (twice, "must have {}"),
        (nowhere, "make it first"),
        (missing, "check the name"),
        (small, "too small"),
        (none, "1 to 4096"),
    ] {
        let error = run(&asked).unwrap_err();
        assert_eq!(error.exit_status(), 2, "{error}");
        assert!(error.to_string().contains(words) && !error.to_string().contains('\n'), "{error}");
    }
    assert_eq!(place.names(), ["ragged", "records"]);
}

#[test]
fn a_partition_that_is_stopped_leaves_nothing() {
    let place = Place::new();
    generate(&place, 200_000, false);
    let progress = Progress::default();
    progress.cancel(15);
    let error = thalweg_engine::run(&datamation(&place, PartitionPick::Hash, 4), &progress).unwrap_err();
    assert_eq!(error.exit_status(), 128 + 15);
    assert_eq!(place.names(), ["records"]);
}

/// This process starts itself once for each sabotage and checks what the receipt says.
mod canaries {
    use super::*;

    const TASK: &str = "THALWEG_TEST_TASK";

    #[test]
    fn a_task_in_a_process_of_its_own() {
        if std::env::var(TASK).is_err() {
            return;
        }
        let place = Place::new();
        generate(&place, 100_000, false);
        let receipt = run(&datamation(&place, PartitionPick::Hash, 4)).unwrap();
        let unnamed = place.names() == ["records"];
        println!("came: {} {unnamed}", receipt.holds);
    }

    #[test]
    fn a_batch_that_is_dropped_doubled_or_short_is_caught_by_the_receipt() {
        let come = |sabotage: Option<&str>| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command
                .args(["canaries::a_task_in_a_process_of_its_own", "--exact", "--nocapture"])
                .env(TASK, "1");
            if let Some(sabotage) = sabotage {
                command.env("THALWEG_SABOTAGE", sabotage);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.lines().find_map(|line| Some(line.split_once("came: ")?.1.to_string())).expect("a verdict")
        };
        assert_eq!(come(None), "true false");
        for sabotage in ["drop-batch", "double-batch", "short-batch"] {
            assert_eq!(come(Some(sabotage)), "false true", "{sabotage}");
        }
    }
}
