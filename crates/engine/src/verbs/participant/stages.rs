//! The report on the stages of a participant, and on what its sorters spilled.

use thalweg_api::{Disk, Receipt, Stage, Work};
use thalweg_pump::Meters;

/// What sorters used beside their memory.
pub(super) struct Spill {
    pub(super) disk: Disk,
    pub(super) peak_bytes: u64,
    /// Of the process, while all memory of some sorters was mapped.
    pub(super) huge_page_bytes: u64,
}

impl Spill {
    pub(super) fn of(sorters: &[Receipt]) -> Spill {
        let sum = |of: fn(&Receipt) -> u64| sorters.iter().map(of).sum();
        Spill {
            disk: Disk {
                read_bytes: sum(|sorter| sorter.io.scratch.read_bytes),
                written_bytes: sum(|sorter| sorter.io.scratch.written_bytes),
            },
            peak_bytes: sum(|sorter| sorter.scratch_peak_bytes),
            huge_page_bytes: sorters.iter().map(|s| s.memory.huge_page_bytes).max().unwrap_or(0),
        }
    }
}

/// The stages of this work.
pub(super) fn stages_of(work: Work) -> [Stage; 3] {
    ["sample", "read+river", work.last_stage()].map(|name| Stage::new(name, 0.0))
}

/// The stages, with what they moved and waited for, from meters and sorters. A sorter that waits for records, or for
/// its records to be taken, does not count as waiting.
pub(super) fn stages(work: Work, sampled_bytes: u64, meters: &Meters, sorters: &[Receipt]) -> Vec<Stage> {
    let mut stages = Vec::from(stages_of(work));
    let (waited_read_seconds, waited_write_seconds) = meters.stage.take_seconds();
    stages[0].read_bytes = sampled_bytes;
    (stages[1].read_bytes, stages[1].waited_read_seconds) = (meters.input.totals().0, waited_read_seconds);
    (stages[2].written_bytes, stages[2].waited_write_seconds) =
        (meters.output.totals().1, waited_write_seconds);
    sorters.iter().for_each(|sorter| add_spill(&mut stages, 1, sorter));
    stages
}

/// Adds what a sorter spilled: in stage `came` while its records arrived, and in the last while they were taken.
pub(in crate::verbs) fn add_spill(stages: &mut [Stage], came: usize, sorter: &Receipt) {
    let Some((distribute, others)) = sorter.stages.split_first() else { return };
    stages[came].waited_write_seconds += distribute.waited_write_seconds;
    stages[came].written_bytes += distribute.written_bytes;
    let last = stages.last_mut().expect("there are stages");
    for other in others {
        last.waited_read_seconds += other.waited_read_seconds;
        last.read_bytes += other.read_bytes;
        last.written_bytes += other.written_bytes;
    }
}

/// Sets how long each stage took, from the seconds after which it was over.
pub(super) fn took(stages: &mut [Stage], over: [f64; 3]) {
    let mut begun = 0.0;
    for (stage, over) in stages.iter_mut().zip(over) {
        stage.seconds = over - begun;
        begun = over;
    }
}
