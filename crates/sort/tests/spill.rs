//! Inputs about as large as memory, and several times as large, with the minimum of memory.

mod support;

use support::data::{SHAPES, Shape, as_lines, random, records};
use support::{Case, Stage, down, up};
use thalweg_base::rng::Rng;
use thalweg_record::Layout;

#[test]
fn a_sort_in_a_process_of_its_own() {
    support::alone::child();
}

const MB: usize = 1_000_000;

/// Records of 100 bytes with eleven-byte keys inside.
fn hundred(shape: Shape, bytes: usize) -> Case {
    let mut input = Vec::with_capacity(bytes);
    for (i, key) in records(shape, 5, bytes / 100, |_| 11).iter().enumerate() {
        input.extend_from_slice(format!("{i:040}").as_bytes());
        input.extend_from_slice(key);
        input.extend_from_slice(&[b'.'; 49]);
    }
    Case::fixed(100, input).by(&[up(40, 11)])
}

#[test]
fn inputs_around_the_size_of_memory() {
    // Spilling starts at a size that depends on the layout; these sizes are on both sides of it.
    let mut spilled = Vec::new();
    for bytes in [8 * MB, 10 * MB, 11 * MB, 12 * MB, 13 * MB, 14 * MB, 40 * MB] {
        for lanes in [1, 2] {
            let receipt = Stage::real().sorts_alone(&hundred(Shape::Uniform, bytes).lanes(lanes));
            spilled.push(receipt.io.scratch.written_bytes > 0);
        }
    }
    assert!(!spilled[0] && spilled[spilled.len() - 1], "{spilled:?}");
}

#[test]
fn no_distribution_of_records_is_too_bad_for_little_memory() {
    for shape in SHAPES {
        Stage::real().sorts_alone(&hundred(shape, 20 * MB));
        Stage::real().sorts_alone(&hundred(shape, 20 * MB).unique());
    }
}

#[test]
fn no_distribution_of_lines_is_too_bad_for_little_memory() {
    for shape in SHAPES {
        let lines = records(shape, 9, 300_000, |rng| rng.below(120) as usize);
        let case = Case::lines(as_lines(&lines, false));
        Stage::real().sorts_alone(&case);
        Stage::real().sorts_alone(&case.by(&[down(2, 30), up(0, 2)]).unique());
    }
}

#[test]
fn records_of_one_byte_and_of_many() {
    for record_bytes in [1, 2, 9, 16, 17, 1000, 65_537] {
        let bytes = if record_bytes < 10 { 8 * MB } else { 20 * MB };
        let mut input = vec![0; bytes / record_bytes * record_bytes];
        random(&mut Rng::new(record_bytes as u64), &mut input);
        let case = Case::fixed(record_bytes as u32, input);
        Stage::real().sorts_alone(&case);
        // Keys after the sampled part have tests of their own.
        if (10..10_000).contains(&record_bytes) {
            let last = record_bytes as u32 - 1;
            Stage::real().sorts_alone(&case.by(&[down(last, 1), up(last / 2, 3)]).lanes(1));
        }
    }
}

#[test]
fn many_files_and_two_scratch_directories() {
    let part = |i: u64| {
        let len = 1 + Rng::new(i).below(400_000) as usize;
        as_lines(&records(Shape::Uniform, i, len / 40, |rng| rng.below(80) as usize), i.is_multiple_of(2))
    };
    let case = Case { inputs: (0..100).map(part).collect(), layout: Layout::Lines, ..Case::lines(vec![]) };
    let mut stage = Stage::real();
    stage.scratch_directories = 2;
    stage.sorts_alone(&case);
}

/// Ranges are planned for equal numbers of records. Here the first ones have nearly all of the bytes, so the output
/// gets far ahead of the planned places of later pages.
#[test]
fn pages_are_moved_before_the_output_overwrites_them() {
    let mut rng = Rng::new(5);
    let mut input = Vec::new();
    while input.len() < 40_000_000 {
        let is_long = rng.one_in(50);
        let len = if is_long { 2000 } else { 8 };
        input.push(if is_long { b'a' } else { b'z' });
        input.extend((0..len).map(|_| b'a' + rng.below(20) as u8));
        input.push(b'\n');
    }
    let bytes = input.len() as u64;
    let receipt = Stage::real().sorts(&Case::lines(input).in_output());
    let scratch = receipt.io.scratch;
    assert!(scratch.written_bytes > bytes, "nothing was moved: {scratch:?} of {bytes}");
}

/// Of two inputs and of two scratch directories, one each is on a simulated disk and one on the real disk, so a lane
/// has one queue for both. The output is on the simulated disk.
#[test]
fn a_sort_with_inputs_and_scratch_on_several_disks_is_that_of_one_disk() {
    let (simulated, real) = (Stage::simulated(3), Stage::threads());
    let mut case = hundred(Shape::Uniform, 40 * MB);
    let half = case.inputs[0].split_off(20 * MB);
    case.inputs.push(half);
    let mut sort = simulated.set(&case);
    let other = real.set(&case);
    sort.inputs[1] = other.inputs[1].clone();
    sort.scratch.extend(other.scratch);
    let receipt = thalweg_sort::run(&sort, &support::Unwatched).unwrap();
    case.expected().is(&simulated.get("out/sorted").expect("there is an output"), &receipt);
    assert_eq!(receipt.io.backend, "sim+threads");
    let (here, all) =
        (simulated.disk().bytes_written(simulated.path("scratch0")), receipt.io.scratch.written_bytes);
    assert!(here > all / 4 && here < all - all / 4, "{here} of {all} bytes are on the simulated disk");
    assert_eq!(simulated.names(), ["in/0", "in/1", "out/sorted"]);
    assert_eq!(real.names(), ["in/0", "in/1"]);
}
