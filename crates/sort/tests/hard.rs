//! Records that are hard for sampling or memory: very long, very short, or with long common prefixes, in little
//! memory.

mod support;

use support::data::{Shape, as_lines, as_prefixed, random, records};
use support::{Case, MEMORY_MIN, Stage, down, up};
use thalweg_base::rng::Rng;
use thalweg_sort::Watch;

#[test]
fn a_sort_in_a_process_of_its_own() {
    support::alone::child();
}

#[test]
fn lines_up_to_an_eighth_of_memory() {
    let longest = MEMORY_MIN / 8 - 1;
    let lines = records(Shape::Uniform, 4, 24, |rng| (longest - rng.below(8) * longest / 8) as usize);
    let receipt = Stage::real().sorts_alone(&Case::lines(as_lines(&lines, false)));
    assert!(receipt.io.scratch.written_bytes > 0, "{receipt:?}");
}

#[test]
fn prefixed_records_up_to_an_eighth_of_memory() {
    let longest = MEMORY_MIN / 8 - 5;
    let mut contents = records(Shape::Uniform, 4, 24, |rng| (longest - rng.below(8) * longest / 8) as usize);
    let receipt = Stage::real().sorts_alone(&Case::prefixed(as_prefixed(&contents)));
    assert!(receipt.io.scratch.written_bytes > 0, "{receipt:?}");
    contents.push(vec![b'a'; MEMORY_MIN as usize]);
    let told = Stage::simulated(1).refuses(&Case::prefixed(as_prefixed(&contents))).to_string();
    assert!(told.contains("an eighth of the memory") || told.contains("is too small"), "{told}");
}

/// Keys with a longer common prefix than a split point keeps.
#[test]
fn common_prefixes_longer_than_a_split_point() {
    let mut rng = Rng::new(8);
    let mut input = Vec::new();
    for _ in 0..5000 {
        input.extend([b'p'; 5000]);
        input.extend(format!("{:016x}\n", rng.next_u64()).into_bytes());
    }
    Stage::real().sorts_alone(&Case::lines(input));
}

/// Groups of keys with a longer common prefix than a split point keeps, and in each group an even longer one: for
/// fixed records, and for lines with keys of one part and of two.
#[test]
fn nested_common_prefixes_longer_than_a_split_point() {
    const AGREE: usize = 300_000;
    const LINE: usize = 2 * AGREE + 9;
    let mut rng = Rng::new(9);
    let mut input = Vec::new();
    for _ in 0..60 {
        input.extend([b'p'; AGREE]);
        let group = b'q' + rng.below(3) as u8;
        input.extend([group; AGREE]);
        input.extend(format!("{:08x}\n", rng.below(40)).into_bytes());
    }
    let all = LINE as u32;
    Stage::real().sorts_alone(&Case::fixed(all, input.clone()).lanes(1));
    Stage::real().sorts_alone(&Case::lines(input.clone()));
    Stage::real().sorts_alone(&Case::lines(input.clone()).by(&[down(0, all)]));
    Stage::real().sorts_alone(&Case::lines(input).by(&[up(1, 2 * AGREE as u32), down(all - 4, 2)]));
}

#[test]
fn long_records_whose_keys_lie_far_behind() {
    for record_bytes in [65_537, 1 << 20] {
        let mut input = vec![0; 20_000_000 / record_bytes * record_bytes];
        random(&mut Rng::new(record_bytes as u64), &mut input);
        let last = record_bytes as u32 - 1;
        let case = Case::fixed(record_bytes as u32, input);
        Stage::real().sorts_alone(&case.by(&[down(last, 1), up(last / 2, 3)]).lanes(1));
    }
}

/// The sample sees few of these keys, so all fall into one bucket, which is split later.
#[test]
fn a_million_empty_lines_in_one_place() {
    let mut rng = Rng::new(5);
    let mut input: Vec<u8> = Vec::new();
    for i in 0..360_000 {
        if i == 60_000 {
            input.extend([b'\n'; 1_200_000]);
        }
        input.extend(format!("{:016x}{:016x}\n", rng.next_u64(), rng.next_u64()).into_bytes());
    }
    Stage::real().sorts_alone(&Case::lines(input));
}

/// These records are their own entries.
#[test]
fn records_of_one_byte() {
    let mut input = vec![0; 6_000_000];
    random(&mut Rng::new(11), &mut input);
    Stage::real().sorts_alone(&Case::fixed(1, input).lanes(1));
}

#[test]
fn nothing_but_empty_lines() {
    Stage::real().sorts_alone(&Case::lines(vec![b'\n'; 20_000_000]));
}

#[test]
fn nothing_but_empty_lines_in_much_memory() {
    Stage::real().sorts_alone(&Case::lines(vec![b'\n'; 20_000_000]).within(256 << 20));
}

#[test]
fn lines_of_a_byte_or_two() {
    let mut rng = Rng::new(1);
    let input: Vec<u8> = (0..20_000_000).map(|_| if rng.one_in(2) { b'\n' } else { b'a' }).collect();
    for memory_bytes in [MEMORY_MIN, 64 << 20] {
        Stage::real().sorts_alone(&Case::lines(input.clone()).within(memory_bytes));
    }
}

#[test]
fn records_of_a_mebibyte() {
    let mut input = vec![0; 19 << 20];
    random(&mut Rng::new(1), &mut input);
    Stage::real().sorts_alone(&Case::fixed(1 << 20, input));
}

/// Counts how often the first pass begins.
#[derive(Default)]
struct Begun(std::sync::atomic::AtomicUsize);

impl Watch for Begun {
    fn begin(&self, stage: &str, _: u64, _: u64, _: u64) {
        self.0.fetch_add(usize::from(stage == "read+distribute"), std::sync::atomic::Ordering::Relaxed);
    }
}

/// The sample did not measure the first line, so the whole sort was planned again, and read the last line again for each
/// of its places in it. Lines so long are now measured once each, wherever the longest of them is.
#[test]
fn a_few_huge_lines_are_planned_once() {
    const LENS: [usize; 3] = [12_000_000, 9_000_000, 2_000_000];
    let mut rng = Rng::new(6);
    for turn in 0..3 {
        let mut lines: Vec<Vec<u8>> = LENS.iter().map(|len| vec![0; *len]).collect();
        lines.iter_mut().for_each(|line| random(&mut rng, line));
        lines.rotate_left(turn);
        for inputs in [
            vec![as_lines(&lines, false)],
            lines.iter().map(|line| as_lines(std::slice::from_ref(line), true)).collect(),
        ] {
            let case = Case { inputs, ..Case::lines(vec![]).within(512 << 20) };
            let (stage, begun) = (Stage::real(), Begun::default());
            let sort = stage.set(&case);
            let receipt = stage.run(&case, &sort, &begun).unwrap();
            case.expected().is(&stage.get("out/sorted").unwrap(), &receipt);
            assert_eq!(begun.0.into_inner(), 1, "{turn}");
        }
    }
}
