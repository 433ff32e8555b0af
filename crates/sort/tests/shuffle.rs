//! Shuffles: every order is equally likely, and depends only on the seed and the inputs.
//!
//! Invariant: the seeds are fixed, so the results are the same in every run.

mod support;

use support::data::{Shape, as_lines, as_prefixed, records};
use support::{Case, MEMORY_MIN, Stage, Unwatched, records_of};

/// The output of a shuffle, proved to be its input.
fn shuffled(stage: &Stage, case: &Case) -> Vec<u8> {
    let sort = stage.set(case);
    let receipt = stage.run(case, &sort, &Unwatched).unwrap_or_else(|e| panic!("{e}"));
    assert!(receipt.holds && receipt.verb == "shuffle", "{receipt:?}");
    stage.get("out/sorted").expect("there is an output")
}

/// The deviation of counts from equal ones, in standard deviations.
fn excess(counts: &[u64], degrees: f64) -> f64 {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let chi_square: f64 = counts.iter().map(|&n| (n as f64 - mean).powi(2) / mean).sum();
    (chi_square - degrees) / (2.0 * degrees).sqrt()
}

#[test]
fn every_order_of_few_records_is_as_likely_as_any_other() {
    const RECORDS: usize = 4;
    let stage = Stage::simulated(1);
    let mut orders = std::collections::BTreeMap::<Vec<u8>, u64>::new();
    let mut places = [0u64; RECORDS * RECORDS];
    for seed in 0..1200 {
        let case = Case::fixed(1, (0..RECORDS as u8).collect()).lanes(1).shuffled(seed);
        let order = shuffled(&stage, &case);
        order.iter().enumerate().for_each(|(to, from)| places[RECORDS * *from as usize + to] += 1);
        *orders.entry(order).or_default() += 1;
    }
    let counts: Vec<u64> = orders.into_values().collect();
    assert_eq!(counts.len(), 24, "all orders occur");
    assert!(excess(&counts, 23.0) < 4.0, "{counts:?}");
    assert!(excess(&places, 9.0) < 4.0, "{places:?}");
}

#[test]
fn a_shuffle_moves_records_everywhere_and_separates_neighbours() {
    const RECORDS: u32 = 100_000;
    const PARTS: usize = 20;
    let input: Vec<u8> = (0..RECORDS).flat_map(u32::to_be_bytes).collect();
    let output = shuffled(&Stage::simulated(1), &Case::fixed(4, input).shuffled(1));
    let order: Vec<u32> = output.chunks(4).map(|r| u32::from_be_bytes(r.try_into().unwrap())).collect();
    let mut counts = vec![0u64; PARTS * PARTS];
    let part = |place: usize| place * PARTS / RECORDS as usize;
    order.iter().enumerate().for_each(|(to, &from)| counts[part(to) * PARTS + part(from as usize)] += 1);
    // The sums of rows and columns are fixed.
    assert!(excess(&counts, ((PARTS - 1) * (PARTS - 1)) as f64) < 4.0, "{counts:?}");
    // About one pair of neighbours stays together, and about one record stays in its place.
    assert!(order.windows(2).filter(|p| p[0] + 1 == p[1]).count() < 8);
    assert!(order.iter().enumerate().filter(|(to, from)| *to as u32 == **from).count() < 8);
    let rises = order.windows(2).filter(|p| p[0] < p[1]).count() as f64;
    assert!((rises - f64::from(RECORDS) / 2.0).abs() < 4.0 * (f64::from(RECORDS) / 12.0).sqrt(), "{rises}");
}

#[test]
fn the_same_seed_gives_the_same_order_in_any_memory_on_any_number_of_lanes() {
    let fixed = Case::fixed(100, records(Shape::Uniform, 1, 240_000, |_| 100).concat());
    let short = records(Shape::Uniform, 2, 600_000, |rng| rng.below(70) as usize);
    for case in [fixed, Case::lines(as_lines(&short, true)), Case::prefixed(as_prefixed(&short))] {
        let stage = Stage::simulated(2);
        let whole = shuffled(&stage, &case.clone().within(128 << 20).lanes(1).shuffled(7));
        let in_order = |bytes| {
            let mut records = records_of(case.layout, bytes);
            records.sort_unstable();
            records
        };
        assert!(in_order(&whole) == in_order(&case.inputs[0]), "out = in");
        for (memory, lanes) in [(MEMORY_MIN, 2), (MEMORY_MIN, 1), (40 << 20, 3)] {
            let sort = case.clone().within(memory).lanes(lanes).shuffled(7);
            assert!(shuffled(&stage, &sort) == whole, "{memory} bytes of memory, {lanes} lanes");
        }
        let other = shuffled(&stage, &case.clone().within(128 << 20).shuffled(8));
        assert!(other != whole, "another seed, another order");
        // Inputs count as one sequence, however it is divided.
        let first = records_of(case.layout, &case.inputs[0])[1000];
        let cut = first.as_ptr() as usize - case.inputs[0].as_ptr() as usize;
        let (head, tail) = case.inputs[0].split_at(cut);
        let parts = Case { inputs: vec![head.to_vec(), Vec::new(), tail.to_vec()], ..case.clone() };
        assert!(shuffled(&stage, &parts.shuffled(7)) == whole, "in parts");
    }
}

#[test]
fn few_records_are_all_shuffled() {
    let stage = Stage::simulated(1);
    for input in [&b""[..], b"a", b"\n", b"a\n\nb"] {
        let output = shuffled(&stage, &Case::lines(input.to_vec()).shuffled(1));
        let added = usize::from(!input.is_empty() && !input.ends_with(b"\n"));
        assert_eq!(output.len(), input.len() + added, "{input:?}");
    }
}
