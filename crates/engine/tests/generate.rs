//! `gen` with real files: every byte is as the record crate makes it, and nothing is left behind after a failure.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use place::Place;
use thalweg_api::Receipt;
use thalweg_engine::{Endpoint, GenOptions, IoChoice, Progress, generate};
use thalweg_record::{Generator, Kind, RECORD_BYTES};

/// The records of one page of the verb, at whose ends the difficult cases are.
const PAGE: u128 = 10_240;

fn options(count: u128, output: Endpoint) -> GenOptions {
    GenOptions { count, output, ascii: false, skewed: false, start: 0, io: IoChoice::Auto }
}

fn run(options: &GenOptions) -> thalweg_engine::Result<Receipt> {
    generate(options, &Progress::default())
}

/// The bytes that the verb should have written.
fn records(options: &GenOptions) -> Vec<u8> {
    let mut bytes = vec![0; options.count as usize * RECORD_BYTES];
    let kind = Kind { ascii: options.ascii, skewed: options.skewed };
    Generator::new(kind, options.start).fill(&mut bytes);
    bytes
}

fn refusal(options: &GenOptions) -> String {
    let error = run(options).unwrap_err();
    assert!(!error.is_wrong(), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.contains(".partial"), "{text}");
    text
}

#[test]
fn every_count_around_a_page_comes_out_whole() {
    let place = Place::new();
    for count in [0, 1, 40, 41, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 77] {
        let options = options(count, place.end("out"));
        let receipt = run(&options).unwrap();
        assert!(place.read("out") == records(&options), "{count}");
        assert!(receipt.holds);
        assert_eq!(u128::from(receipt.output.records), count);
        assert_eq!(receipt.output.bytes, receipt.io.output.written_bytes);
        assert_eq!(place.names(), ["out"]);
    }
}

#[test]
fn all_kinds_from_any_start_by_either_back_end() {
    let place = Place::new();
    let starts = [999_999, u128::from(u64::MAX), 1 << 127, u128::MAX - 3 * PAGE + 1];
    for (i, start) in starts.into_iter().enumerate() {
        let io = if i % 2 == 0 { IoChoice::Auto } else { IoChoice::Threads };
        let options = GenOptions {
            ascii: i & 1 == 1,
            skewed: i & 2 == 2,
            start,
            io,
            ..options(3 * PAGE, place.end("out"))
        };
        let receipt = run(&options).unwrap();
        assert!(place.read("out") == records(&options), "{options:?}");
        assert!(io == IoChoice::Auto || receipt.io.backend == "threads");
    }
}

#[test]
fn the_receipt_proves_the_order_over_all_pages() {
    let place = Place::new();
    let receipt = run(&options(1_000_000, place.end("out"))).unwrap();
    assert_eq!((receipt.output.unordered, receipt.output.duplicates), (499_452, 0));
    assert_eq!(receipt.output, receipt.input);
}

#[test]
fn a_pipe_is_written_in_order() {
    let place = Place::new();
    let options = options(3 * PAGE + 5, place.pipe("pipe"));
    let path = place.at("pipe");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        File::open(path).unwrap().read_to_end(&mut bytes).map(|_| bytes)
    });
    let receipt = run(&options).unwrap();
    assert!(reader.join().unwrap().unwrap() == records(&options));
    assert!(receipt.holds && !receipt.io.direct_output);
    assert_eq!(place.names(), ["pipe"]);
}

#[test]
fn a_reader_who_leaves_ends_it_as_it_ends_other_programs() {
    let place = Place::new();
    let options = options(100 * PAGE, place.pipe("pipe"));
    let path = place.at("pipe");
    let reader = std::thread::spawn(move || File::open(path).unwrap().read_exact(&mut [0; 100]).unwrap());
    let error = run(&options).unwrap_err();
    reader.join().unwrap();
    assert_eq!(error.exit_status(), 128 + 13, "{error}");
}

#[test]
fn a_device_that_is_full_says_so() {
    let text = refusal(&options(100, Endpoint::Path("/dev/full".into())));
    assert!(text.contains("/dev/full") && text.contains("free some room"), "{text}");
}

#[test]
fn more_than_the_disk_holds_is_refused_at_once_and_the_old_file_stays() {
    let place = Place::new();
    let output = place.write("out", b"old");
    let text = refusal(&options(10_000_000_000_000, output));
    assert!(text.contains("out") && text.contains("TiB"), "{text}");
    assert!(text.contains("left") || text.contains("one file"), "{text}");
    assert_eq!(place.names(), ["out"]);
    assert_eq!(place.read("out"), b"old");
}

#[test]
fn names_that_cannot_be_written_are_told_apart() {
    let place = Place::new();
    let name = |path: PathBuf| refusal(&options(1, Endpoint::Path(path)));
    let text = name(place.at("missing/out"));
    assert!(text.contains("there is no directory") && text.contains("make it first"), "{text}");
    let text = name(place.at(""));
    assert!(text.contains("is a directory"), "{text}");
    let text = name(place.at("new/"));
    assert!(text.contains("no name for a file"), "{text}");
    place.write("file", b"");
    let text = name(place.at("file/out"));
    assert!(text.contains("file"), "{text}");
    let text = name("/proc/out".into());
    assert!(text.contains("/proc/out"), "{text}");
    place.write("kept", b"kept");
    std::fs::set_permissions(place.at("kept"), PermissionsExt::from_mode(0o444)).unwrap();
    let text = name(place.at("kept"));
    assert!(text.contains("read-only") && text.contains("chmod"), "{text}");
    assert_eq!(place.names(), ["file", "kept"]);
}

#[test]
fn numbers_beyond_the_last_record_or_the_largest_file_are_refused() {
    let place = Place::new();
    let text = refusal(&options(u128::MAX, place.end("out")));
    assert!(text.contains("more than a file can hold"), "{text}");
    let text = refusal(&GenOptions { start: u128::MAX, ..options(2, place.end("out")) });
    assert!(text.contains("the last there is"), "{text}");
    assert!(place.names().is_empty());
    run(&GenOptions { start: u128::MAX, ..options(1, place.end("out")) }).unwrap();
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let place = Place::new();
    place.write("real", b"old");
    symlink("real", place.at("link")).unwrap();
    let options = options(7, place.end("link"));
    run(&options).unwrap();
    assert!(place.at("link").is_symlink());
    assert_eq!(place.read("real"), records(&options));
}

#[test]
fn a_cancelled_run_leaves_nothing_and_the_old_file_as_it_was() {
    let place = Place::new();
    let output = place.write("out", b"old");
    let progress = Progress::default();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.view().done_bytes == 0 {
                std::thread::yield_now();
            }
            progress.cancel(15);
        });
        generate(&options(5_000_000, output), &progress).unwrap_err()
    });
    assert_eq!(error.exit_status(), 128 + 15);
    assert_eq!(place.names(), ["out"]);
    assert_eq!(place.read("out"), b"old");
}
