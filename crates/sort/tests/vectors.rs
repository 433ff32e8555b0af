//! The Sort Benchmark's data: its test vector, its four layouts, and an output that is also an input.

mod support;

use std::process::Command;

use support::data::benchmark;
use support::{Case, MEMORY_MIN, Stage, Unwatched, up};
use thalweg_record::Kind;

const MILLION: usize = 1_000_000;
const SORTED: &str = "e3a83e3f15d2cb3fd414046d6c10d3f525921150c4f824dac25556e466b099d3";

#[test]
fn a_sort_in_a_process_of_its_own() {
    support::alone::child();
}

fn kind(ascii: bool, skewed: bool) -> Kind {
    Kind { ascii, skewed }
}

fn sha256(stage: &Stage, name: &str) -> String {
    let output = Command::new("sha256sum").arg(stage.path(name)).output().expect("sha256sum is there");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a digest").to_string()
}

#[test]
fn a_million_records_have_the_references_digest_in_one_pass_and_in_two() {
    let input = benchmark(kind(false, false), MILLION);
    for (memory_bytes, spills) in [(256 << 20, false), (MEMORY_MIN, true)] {
        let stage = Stage::real();
        let case = Case::fixed(100, input.clone()).by(&[up(0, 10)]).within(memory_bytes);
        let receipt = stage.run_alone(&case).result.expect("it is sorted");
        assert_eq!(sha256(&stage, "out/sorted"), SORTED, "in {memory_bytes}");
        assert_eq!(receipt.io.scratch.written_bytes > 0, spills);
        let proof = receipt.output;
        assert_eq!((proof.records, proof.duplicates, proof.unordered), (MILLION as u64, 0, 0));
    }
}

#[test]
fn all_four_layouts_are_sorted_as_from_the_model() {
    for (ascii, skewed) in [(false, true), (true, false), (true, true)] {
        for (memory_bytes, count) in [(256 << 20, 100_000), (MEMORY_MIN, 300_000)] {
            let input = benchmark(kind(ascii, skewed), count);
            let case = Case::fixed(100, input).by(&[up(0, 10)]).within(memory_bytes);
            Stage::real().sorts_alone(&case);
            if ascii {
                // They are also lines.
                Stage::real().sorts_alone(&Case {
                    layout: thalweg_record::Layout::Lines,
                    keys: vec![],
                    ..case
                });
            }
        }
    }
}

#[test]
fn the_output_is_one_of_the_inputs() {
    for (memory_bytes, count) in [(64 << 20, 1000), (MEMORY_MIN, 300_000)] {
        for which in 0..2 {
            let stage = Stage::real();
            let input = benchmark(kind(false, false), count);
            let (first, second) = input.split_at(count / 3 * 100);
            let case = Case::fixed(100, vec![]).by(&[up(0, 10)]).within(memory_bytes);
            let case = Case { inputs: vec![first.to_vec(), second.to_vec()], ..case };
            let mut sort = stage.set(&case);
            sort.output = stage.at(&format!("in/{which}"));
            let receipt = stage.run(&case, &sort, &Unwatched).expect("it is sorted");
            let output = stage.get(&format!("in/{which}")).expect("there is an output");
            case.expected().is(&output, &receipt);
        }
    }
}
