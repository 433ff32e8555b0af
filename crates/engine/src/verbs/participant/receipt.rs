//! The receipt of a job on several nodes, from what each has done.
//!
//! Invariant: the output of all participants together is their input, in the order of their ranges if there is one.

use std::ops::Range;

use thalweg_api::{
    Disk, IoReceipt, MemoryReceipt, NodeReceipt, ParticipantEnd, Proof, Receipt, Sides, Stage, Work,
};
use thalweg_record::{Key, add_proof, file_bytes, same_records};

use super::sort_stage;
use super::stages::{stages_of, took};
use crate::{Result, WorkOptions};

/// The receipt of all participants, in the order of their ranges, without the CPU seconds of the coordinator. The
/// inputs have this many bytes. The shares numbered `again` sorted the range of a lost node; they read all inputs once
/// more, and what they read counts.
pub fn receipt(
    sort: &WorkOptions,
    (ends, again): (&[ParticipantEnd], Range<usize>),
    input_file_bytes: u64,
    seconds: f64,
) -> Result<Receipt> {
    let (work, key) = (sort.work, Key::new(sort.layout, &sort.keys)?);
    let (mut input, mut dropped) = (Proof::default(), Proof::default());
    let mut output = sort_stage::prover(sort.layout, &key);
    let mut io = IoReceipt::default();
    let mut sides: Option<Sides> = None;
    for (i, end) in ends.iter().enumerate() {
        if again.is_empty() || again.contains(&i) {
            add_proof(&mut input, &end.input);
        }
        add_proof(&mut dropped, &end.dropped);
        output.join(&sort_stage::prover(sort.layout, &key).of_piece(end.output, end.ends.clone()));
        add_io(&mut io, &end.io);
        if let Some(its) = &end.node.sides {
            add_sides(sides.get_or_insert_default(), its);
        }
    }
    let mut output = *output.proof();
    // The records of parts and of shuffles are in no order that could be checked.
    let is_ordered = matches!(work, Work::Sort | Work::Merge);
    if !is_ordered {
        (output.unordered, output.duplicates) = (0, 0);
    }
    // Each node has checked its own output against the sides of a join.
    let mut came = Proof::default();
    let parts = sides.map_or([output, dropped], |sides| [sides.left, sides.right]);
    parts.iter().for_each(|part| add_proof(&mut came, part));
    let sum = |of: fn(&NodeReceipt) -> u64| ends.iter().map(|end| of(&end.node)).sum();
    let most = |of: fn(&NodeReceipt) -> u64| ends.iter().map(|end| of(&end.node)).max().unwrap_or(0);
    let of = |is_again: bool| -> Vec<&ParticipantEnd> {
        let ends = ends.iter().enumerate().filter(|(i, _)| again.contains(i) == is_again);
        ends.map(|(_, end)| end).collect()
    };
    let (first, second) = (of(false), of(true));
    Ok(Receipt {
        verb: work.verb().into(),
        sides,
        input,
        output,
        dropped,
        input_file_bytes,
        output_file_bytes: sum(|node| node.output.1),
        proved: true,
        holds: same_records(&input, &came)
            && output.unordered == 0
            && (!sort.unique || output.duplicates == 0)
            && (sides.is_some() || sum(|node| node.output.1) == file_bytes(sort.layout, &output)),
        seconds,
        cpu_seconds: ends.iter().map(|end| end.node.cpu_seconds).sum::<f64>(),
        stages: stages(work, &first, &second),
        io,
        memory: MemoryReceipt {
            limit_bytes: most(|node| node.memory_bytes),
            peak_bytes: most(|node| node.peak_bytes),
            huge_page_bytes: most(|node| node.huge_page_bytes),
        },
        scratch_peak_bytes: sum(|node| node.scratch_peak_bytes),
        nodes: rows(&first, &second),
        ..Receipt::default()
    })
}

/// The bytes that all moved in each stage, and the seconds of the node that was in it longest.
fn stages(work: Work, first: &[&ParticipantEnd], again: &[&ParticipantEnd]) -> Vec<Stage> {
    let until = |shares: &[&ParticipantEnd], stage: usize| {
        shares.iter().map(|share| share.node.seconds[stage]).fold(0.0, f64::max)
    };
    let mut stages = Vec::from(stages_of(work));
    took(&mut stages, [0, 1, 2].map(|stage| until(first, stage)));
    for share in first {
        stages.iter_mut().zip(&share.stages).for_each(|(stage, its)| stage.add_traffic(its));
    }
    if !again.is_empty() {
        let mut lost = Stage::new("lost range", until(again, 2));
        again.iter().flat_map(|share| &share.stages).for_each(|its| lost.add_traffic(its));
        stages.push(lost);
    }
    stages
}

/// A row for each host, including what it did again.
fn rows(first: &[&ParticipantEnd], again: &[&ParticipantEnd]) -> Vec<NodeReceipt> {
    let add = |a: &mut (u64, u64), b: (u64, u64)| *a = (a.0 + b.0, a.1 + b.1);
    let mut rows: Vec<NodeReceipt> = first.iter().map(|share| share.node.clone()).collect();
    for ParticipantEnd { node: share, .. } in again {
        let Some(row) = rows.iter_mut().find(|row| row.host == share.host) else { continue };
        add(&mut row.input, share.input);
        add(&mut row.output, share.output);
        add(&mut row.link_bytes, share.link_bytes);
        row.cpu_seconds += share.cpu_seconds;
        row.peak_bytes = row.peak_bytes.max(share.peak_bytes);
        row.huge_page_bytes = row.huge_page_bytes.max(share.huge_page_bytes);
        row.scratch_peak_bytes = row.scratch_peak_bytes.max(share.scratch_peak_bytes);
        row.sampled_bytes += share.sampled_bytes;
    }
    rows
}

fn add_sides(all: &mut Sides, one: &Sides) {
    add_proof(&mut all.left, &one.left);
    add_proof(&mut all.right, &one.right);
    all.pairs += one.pairs;
    all.unmatched += one.unmatched;
}

fn add_io(all: &mut IoReceipt, one: &IoReceipt) {
    let add = |all: &mut Disk, one: &Disk| {
        all.read_bytes += one.read_bytes;
        all.written_bytes += one.written_bytes;
    };
    add(&mut all.input, &one.input);
    add(&mut all.scratch, &one.scratch);
    add(&mut all.output, &one.output);
    all.cached_input_bytes += one.cached_input_bytes;
    all.backend.clone_from(&one.backend);
    all.fallback = all.fallback.take().or_else(|| one.fallback.clone());
    all.direct_output = one.direct_output;
}
