//! Lines must be sorted byte for byte as by `LC_ALL=C sort -s`, in little memory and in much.

#![allow(clippy::disallowed_methods)] // Users of a sort create files in other ways.

mod support;

use std::io::Write;
use std::process::Command;

use support::data::random;
use support::{Case, MEMORY_MIN, Stage};
use thalweg_base::rng::Rng;

const BYTES: usize = 20_000_000;

#[test]
fn a_sort_in_a_process_of_its_own() {
    support::alone::child();
}

/// About `BYTES` bytes of lines, each written by `line`.
fn text(mut line: impl FnMut(&mut Vec<u8>, &mut Rng)) -> Vec<u8> {
    let mut rng = Rng::new(0x5eed);
    let mut text = Vec::with_capacity(BYTES + 100_000);
    while text.len() < BYTES {
        line(&mut text, &mut rng);
        text.push(b'\n');
    }
    text
}

/// Printable bytes.
fn letters(text: &mut Vec<u8>, rng: &mut Rng, len: usize) {
    let from = text.len();
    text.resize(from + len, 0);
    random(rng, &mut text[from..]);
    text[from..].iter_mut().for_each(|b| *b = 33 + *b % 94);
}

/// Sorts in little memory and in much, and compares with GNU sort.
#[track_caller]
fn is_as_from_gnu_sort(text: Vec<u8>) {
    let stage = Stage::real();
    for memory_bytes in [MEMORY_MIN, 256 << 20] {
        let case = Case::lines(text.clone()).within(memory_bytes);
        let receipt = stage.run_alone(&case).result.expect("it is sorted");
        assert!(receipt.holds && receipt.output.unordered == 0, "{receipt:?}");
        let mut gnu = Command::new("sort");
        gnu.env("LC_ALL", "C").args(["-s", "-o"]).args([stage.path("expected"), stage.path("in/0")]);
        assert!(gnu.status().expect("GNU sort is there").success());
        let mut compare = Command::new("cmp");
        let output = compare.args([stage.path("expected"), stage.path("out/sorted")]).output().unwrap();
        assert!(output.status.success(), "in {memory_bytes}: {}", String::from_utf8_lossy(&output.stdout));
        std::fs::remove_file(stage.path("out/sorted")).unwrap();
    }
}

#[test]
fn addresses_that_share_thirty_bytes() {
    is_as_from_gnu_sort(text(|text, rng| {
        let (a, b) = (rng.below(1000), rng.next_u64() >> 30);
        write!(text, "https://www.example.org/pages/{a}/{b:x}").unwrap();
    }));
}

#[test]
fn lines_of_eight_bytes() {
    is_as_from_gnu_sort(text(|text, rng| letters(text, rng, 8)));
}

#[test]
fn repeated_words() {
    is_as_from_gnu_sort(text(|text, rng| {
        let mut word = Rng::new(rng.below(100_000));
        let len = 1 + word.below(12) as usize;
        letters(text, &mut word, len);
    }));
}

#[test]
fn a_log_that_is_nearly_in_order() {
    let mut clock = 1_600_000_000_000;
    is_as_from_gnu_sort(text(|text, rng| {
        clock += rng.below(50);
        let stamp = if rng.one_in(100) { clock - rng.below(1_000_000) } else { clock };
        write!(text, "{stamp} INFO a request took {} us", rng.below(1_000_000)).unwrap();
    }));
}

#[test]
fn lines_from_one_to_sixty_four_kibibytes() {
    is_as_from_gnu_sort(text(|text, rng| {
        let len = (1024 << rng.below(6)) + rng.below(32 << 10) as usize;
        letters(text, rng, len);
    }));
}
