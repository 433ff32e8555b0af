//! `check` with real files: the same verdict as reading from beginning to end, however the records are distributed over
//! files, pages and pipes.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use place::Place;
use thalweg_api::Check;
use thalweg_base::clock::Stopwatch;
use thalweg_engine::{CheckOptions, Endpoint, IoChoice, KeyPart, Layout, Progress, check};
use thalweg_record::{Generator, KEY_BYTES, Kind, RECORD_BYTES, Summary};

const TEN: KeyPart = KeyPart { offset: 0, length: KEY_BYTES as u32, descending: false };
/// The bytes of one read of the verb, at whose ends the difficult cases are.
const PAGE: usize = 1_024_000;

fn lines(inputs: Vec<Endpoint>) -> CheckOptions {
    let (layout, keys) = (Layout::Lines, Vec::new());
    CheckOptions { inputs, layout, keys, header: 0, summary: None, merge: false, io: IoChoice::Auto }
}

fn benchmark(inputs: Vec<Endpoint>) -> CheckOptions {
    CheckOptions { layout: Layout::Fixed(RECORD_BYTES as u32), keys: vec![TEN], ..lines(inputs) }
}

fn run(options: &CheckOptions) -> thalweg_engine::Result<Check> {
    check(options, &Progress::default())
}

fn refusal(options: &CheckOptions) -> String {
    let error = run(options).unwrap_err();
    assert!(!error.is_wrong(), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

fn records(count: usize, sorted: bool) -> Vec<u8> {
    let mut bytes = vec![0; count * RECORD_BYTES];
    Generator::new(Kind::default(), 0).fill(&mut bytes);
    if sorted {
        bytes.as_chunks_mut::<RECORD_BYTES>().0.sort_by(|a, b| a[..KEY_BYTES].cmp(&b[..KEY_BYTES]));
    }
    bytes
}

/// What the validator says about all bytes at once.
fn summary(bytes: &[u8]) -> Summary {
    let mut summary = Summary::new();
    summary.push_records(bytes);
    summary
}

fn assert_same(check: &Check, summary: &Summary) {
    assert_eq!(u128::from(check.proof.records), summary.records);
    assert_eq!(u128::from(check.proof.unordered), summary.unordered);
    assert_eq!(u128::from(check.proof.duplicates), summary.duplicates);
    assert_eq!(check.crc_sum, summary.crc_sum);
    assert_eq!(check.first_unordered, summary.first_unordered);
    assert_eq!(check.ordered, summary.is_ordered());
}

#[test]
fn a_million_records_get_the_references_verdict_before_and_after_sorting() {
    let place = Place::new();
    let found = run(&benchmark(vec![place.write("unsorted", &records(1_000_000, false))])).unwrap();
    assert_eq!(found.crc_sum, 0x7_a0e0_d486_8cd4);
    assert_eq!((found.proof.unordered, found.first_unordered, found.ordered), (499_452, Some(2), false));
    let sorted = run(&benchmark(vec![place.write("sorted", &records(1_000_000, true))])).unwrap();
    assert!(sorted.ordered && sorted.first_unordered.is_none());
    assert_eq!((sorted.crc_sum, sorted.proof.checksum), (found.crc_sum, found.proof.checksum));
}

#[test]
fn parts_are_one_sequence_wherever_they_are_cut_and_whatever_is_wrong() {
    let place = Place::new();
    let good = records(35_000, true);
    // The record that is swapped with the next, and the one that is copied over the next: at the edges of pages, and of
    // lanes if there are two or four.
    let edges =
        [(0, 20_479), (1, 10_239), (10_239, 20_479), (10_240, 30_719), (20_479, 10_239), (34_998, 20_479)];
    for (i, (swapped, doubled)) in edges.into_iter().enumerate() {
        let mut bytes = good.clone();
        let all = bytes.as_chunks_mut::<RECORD_BYTES>().0;
        all.swap(swapped, swapped + 1);
        all[doubled + 1] = all[doubled];
        let truth = summary(&bytes);
        assert!(!truth.is_ordered());
        let whole = benchmark(vec![place.write("whole", &bytes)]);
        assert_same(&run(&whole).unwrap(), &truth);
        assert_same(&run(&CheckOptions { io: IoChoice::Threads, ..whole }).unwrap(), &truth);
        let mut at = 0;
        let mut parts = Vec::new();
        for (j, cut) in [0, 1, swapped + 1, 12_345.max(swapped + 1), 35_000].into_iter().enumerate() {
            let cut = cut.max(at);
            parts.push(place.write(&format!("{i}-{j}"), &bytes[at * RECORD_BYTES..cut * RECORD_BYTES]));
            at = cut;
        }
        assert_same(&run(&benchmark(parts)).unwrap(), &truth);
    }
}

#[test]
fn an_empty_file_is_in_order() {
    let place = Place::new();
    for options in [benchmark(vec![place.write("empty", b"")]), lines(vec![place.end("empty")])] {
        let found = run(&options).unwrap();
        assert!(found.ordered);
        assert_eq!((found.proof.records, found.crc_sum, found.first_unordered), (0, 0, None));
    }
}

#[test]
fn lines_may_lack_the_last_newline_and_be_longer_than_pages() {
    let place = Place::new();
    let long = |letter: u8| [vec![letter; 2 * PAGE + 7], vec![b'\n']].concat();
    let first = place.write("first", &[b"a\nb\n".to_vec(), long(b'b'), long(b'c'), b"d".to_vec()].concat());
    let second = place.write("second", b"\nd\nd\nc");
    let found = run(&lines(vec![first.clone()])).unwrap();
    assert_eq!((found.proof.records, found.ordered), (5, true));
    let found = run(&lines(vec![first, second])).unwrap();
    // a b bb.. cc.. d, then an empty line, d, d and c.
    assert_eq!((found.proof.records, found.proof.unordered, found.proof.duplicates), (9, 2, 1));
    assert_eq!(found.first_unordered, Some(5));
}

#[test]
fn records_that_fit_no_page_are_checked_downwards_too() {
    let place = Place::new();
    let mut bytes = Vec::new();
    for n in (0..400_000u32).rev() {
        bytes.extend_from_slice(b"xyz");
        bytes.extend_from_slice(&n.to_be_bytes());
    }
    let descending = KeyPart { offset: 3, length: 4, descending: true };
    let file = place.write("down", &bytes);
    let options = CheckOptions { layout: Layout::Fixed(7), keys: vec![descending], ..lines(vec![file]) };
    let found = run(&options).unwrap();
    assert_eq!((found.proof.records, found.ordered), (400_000, true));
    let found =
        run(&CheckOptions { keys: vec![KeyPart { descending: false, ..descending }], ..options }).unwrap();
    assert_eq!((found.proof.unordered, found.first_unordered), (399_999, Some(1)));
}

#[test]
fn a_pipe_among_files_is_read_in_its_turn() {
    let place = Place::new();
    let bytes = records(40_000, true);
    let truth = summary(&bytes);
    let (first, rest) = bytes.split_at(11_111 * RECORD_BYTES);
    let (second, third) = rest.split_at(15_000 * RECORD_BYTES);
    let inputs = vec![place.write("first", first), place.pipe("second"), place.write("third", third)];
    let (pipe, second) = (place.at("second"), second.to_vec());
    let writer = std::thread::spawn(move || std::fs::write(pipe, second));
    assert_same(&run(&benchmark(inputs)).unwrap(), &truth);
    writer.join().unwrap().unwrap();
}

#[test]
fn a_pipe_that_ends_inside_a_record_or_a_line() {
    let place = Place::new();
    let pipe = place.pipe("pipe");
    let feed = |bytes: &'static [u8]| {
        let path = place.at("pipe");
        std::thread::spawn(move || std::fs::write(path, bytes))
    };
    let writer = feed(b"0123456789abcdef");
    let text = refusal(&CheckOptions { layout: Layout::Fixed(10), ..lines(vec![pipe.clone()]) });
    assert!(text.contains("6 bytes of a record"), "{text}");
    writer.join().unwrap().unwrap();
    let writer = feed(b"b\na");
    let found = run(&lines(vec![pipe])).unwrap();
    assert_eq!((found.proof.records, found.first_unordered), (2, Some(1)));
    writer.join().unwrap().unwrap();
}

#[test]
fn a_silent_pipe_does_not_keep_a_cancelled_check() {
    let place = Place::new();
    let pipe = place.pipe("pipe");
    let path = place.at("pipe");
    let progress = Progress::default();
    // Both ends stay open, and nothing is ever written.
    let both = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| progress.cancel(2));
        check(&lines(vec![pipe]), &progress).unwrap_err()
    });
    assert_eq!(error.exit_status(), 128 + 2);
    // Nor does the reading thread remain.
    let is_reader = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "read a pipe\n")
    };
    let readers = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let late = Stopwatch::start();
    while readers().any(is_reader) {
        assert!(late.seconds() < 20.0, "it still waits for the pipe");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    drop(both);
}

#[test]
fn summaries_of_parts_merge_to_the_summary_of_the_whole() {
    let place = Place::new();
    for sorted in [true, false] {
        let bytes = records(25_000, sorted);
        let truth = summary(&bytes);
        let mut names = Vec::new();
        let cuts = [0, 0, 9_999, 10_240, 25_000];
        for (i, ends) in cuts.windows(2).enumerate() {
            let part = place.write("part", &bytes[ends[0] * RECORD_BYTES..ends[1] * RECORD_BYTES]);
            let name = format!("{i}.sum");
            run(&CheckOptions { summary: Some(place.at(&name)), ..benchmark(vec![part]) }).unwrap();
            assert_eq!(place.read(&name).len(), 280);
            names.push(name);
        }
        let inputs: Vec<Endpoint> = names.iter().map(|name| place.end(name)).collect();
        let merging = CheckOptions { merge: true, summary: Some(place.at("all.sum")), ..lines(inputs) };
        assert_same(&run(&merging).unwrap(), &truth);
        assert_eq!(place.read("all.sum"), truth.to_bytes());
        // As the reference implementation reads them: one after the other from one file.
        let together: Vec<u8> = names.iter().flat_map(|name| place.read(name)).collect();
        let merging = CheckOptions { merge: true, ..lines(vec![place.write("together", &together)]) };
        assert_same(&run(&merging).unwrap(), &truth);
    }
}

#[test]
fn what_is_no_summary_is_refused_by_name_and_place() {
    let place = Place::new();
    let good = summary(&records(10, true)).to_bytes();
    let merge =
        |bytes: &[u8]| refusal(&CheckOptions { merge: true, ..lines(vec![place.write("x.sum", bytes)]) });
    let text = merge(&[&good[..], &good[..100]].concat());
    assert!(text.contains("x.sum from byte 280") && text.contains("not 100"), "{text}");
    let text = merge(&records(28, false));
    assert!(text.contains("not a summary"), "{text}");
    let text = merge(b"");
    assert!(text.contains("is empty"), "{text}");
}

#[test]
fn what_cannot_be_checked_is_refused_before_anything_is_read() {
    let place = Place::new();
    let good = place.write("good", &records(3, true));
    let with = |bad: Endpoint| refusal(&benchmark(vec![good.clone(), bad]));
    let text = with(place.write("ragged", &[0; 250]));
    assert!(text.contains("ragged has 250 bytes") && text.contains("50 left over"), "{text}");
    let text = with(place.end("missing"));
    assert!(text.contains("missing") && text.contains("No such file"), "{text}");
    let text = with(place.end(""));
    assert!(text.contains("is a directory"), "{text}");
    let outside = KeyPart { offset: 95, length: 10, descending: false };
    let text = refusal(&CheckOptions { keys: vec![outside], ..benchmark(vec![good.clone()]) });
    assert!(text.contains("95:10") && text.contains("100"), "{text}");
    let text = refusal(&CheckOptions { summary: Some(place.at("sum")), ..lines(vec![good]) });
    assert!(text.contains("the key 0:10"), "{text}");
    let text = refusal(&lines(Vec::new()));
    assert!(text.contains("nothing to check"), "{text}");
    assert_eq!(place.names(), ["good", "ragged"]);
}

#[test]
fn a_line_beyond_all_measure_is_refused_instead_of_held() {
    let place = Place::new();
    place.write("zeros", b"");
    let file = std::fs::OpenOptions::new().write(true).open(place.at("zeros")).unwrap();
    file.set_len(600 << 20).unwrap();
    let text = refusal(&lines(vec![place.end("zeros")]));
    assert!(text.contains("zeros") && text.contains("256 MiB"), "{text}");
}

#[test]
fn a_cancelled_check_says_so() {
    let place = Place::new();
    let progress = Progress::default();
    progress.cancel(15);
    let options = benchmark(vec![place.write("good", &records(30_000, true))]);
    assert_eq!(check(&options, &progress).unwrap_err().exit_status(), 128 + 15);
}
