//! Sorts on several nodes as jobs: a table of their nodes, a line of progress, and how they ended.

use std::collections::BTreeMap;

use thalweg_api::{JobReport, JobState, ParticipantView, Receipt};
use thalweg_base::clock::Stopwatch;
use thalweg_base::units::Bytes;

use super::nodes::{harmless, left, state, typed};
use super::{counted, receipt, seconds, traffic};

/// The interval between lines of progress.
const LINE_EVERY_SECONDS: f64 = 1.0;
/// A rate measured over less time than this is a guess.
const PACE_AFTER_SECONDS: f64 = 0.5;

/// A sort with a line for each of its nodes, and its receipt if there is one.
pub(super) fn sort(jobs: &[JobReport]) -> String {
    let Some(first) = jobs.iter().max_by_key(|job| attempt(job)) else { return String::new() };
    let by = match first.share.as_ref().and_then(|share| share.coordinator.as_ref()) {
        Some(host) => format!("asked by {}, coordinated by {host}", first.by),
        None => format!("asked and coordinated by {}", first.by),
    };
    let mut text = format!("{}, {by}: {}\n", first.id, typed(&first.command));
    let mut rows = vec![
        ["node", "attempt", "stage", "read", "written", "rate", "time", "state"].map(String::from).to_vec(),
    ];
    for job in jobs {
        let Some(share) = &job.share else { continue };
        rows.push(vec![
            job.host.clone(),
            attempt(job).to_string(),
            share.stage.clone(),
            traffic(share.read_bytes),
            traffic(share.written_bytes),
            rate(share),
            seconds(job.seconds),
            state(job),
        ]);
    }
    text += &left(&rows);
    for (i, why) in first.share.iter().flat_map(|share| &share.failed).enumerate() {
        text += &format!("attempt {} failed: {}\n", i + 1, harmless(why));
    }
    match end_of_sort(jobs) {
        Some(Ok(done)) => text + &receipt(done),
        _ => text,
    }
}

fn attempt(job: &JobReport) -> usize {
    job.share.as_ref().map_or(0, |share| share.failed.len() + 1)
}

/// The rate of a node in its current stage.
fn rate(share: &ParticipantView) -> String {
    let bytes = match share.stage.as_str() {
        "read+river" => share.read_bytes,
        "sort+write" => share.written_bytes,
        _ => return "-".into(),
    };
    format!("{}/s", traffic((bytes as f64 / share.stage_seconds.max(0.001)) as u64))
}

/// The result of a sort that is no longer watched: its receipt or its error. `None` if none of these jobs is a sort.
pub(crate) fn end_of_sort(jobs: &[JobReport]) -> Option<Result<&Receipt, String>> {
    let last = jobs.iter().filter(|job| job.share.is_some()).max_by_key(|job| attempt(job))?;
    let receipts = jobs.iter().filter_map(|job| job.share.as_ref()?.receipt.as_ref());
    if let Some(receipt) = receipts.into_iter().find(|receipt| receipt.holds) {
        return Some(Ok(receipt));
    }
    // The attempt with the result may have left out a node that failed.
    let ended = jobs.iter().filter(|job| job.state != JobState::Running && attempt(job) == attempt(last));
    let why = ended.filter_map(|job| job.why.as_ref()).next();
    let lost = || format!("no host that runs the sort {} can be asked any more", last.id);
    Some(Err(why.cloned().unwrap_or_else(lost)))
}

/// The state of a display that follows a job.
#[derive(Default)]
pub(crate) struct Watched {
    /// The bytes of each host's output that were shown.
    shown: BTreeMap<String, u64>,
    nodes: BTreeMap<String, ParticipantView>,
    /// The stage and the attempt of the last line, and the time since then.
    last: Option<(String, usize, Stopwatch)>,
}

impl Watched {
    /// The output of a command since the last report; every line has the host's name before it.
    pub(crate) fn command(&mut self, job: &JobReport) -> String {
        let before = self.shown.insert(job.host.clone(), job.output_bytes).unwrap_or(0);
        let new = job.output_bytes.saturating_sub(before) as usize;
        let from = job.tail.len().saturating_sub(new);
        let from = (from..=job.tail.len()).find(|from| job.tail.is_char_boundary(*from)).unwrap_or(0);
        let line = |line: &str| format!("{}: {}\n", job.host, harmless(line));
        let missed = new.saturating_sub(job.tail.len());
        let told = (missed > 0).then(|| format!("{}: ({} left out)\n", job.host, Bytes(missed as u64)));
        told.into_iter().chain(job.tail[from..].lines().map(line)).collect()
    }

    /// Adds a report. Returns a line if the stage changed or enough time has passed.
    pub(crate) fn sort(&mut self, job: &JobReport) -> String {
        let Some(share) = &job.share else { return String::new() };
        self.nodes.insert(job.host.clone(), share.clone());
        let attempt = self.nodes.values().map(|share| share.failed.len()).max().unwrap_or(0);
        self.nodes.retain(|_, share| share.failed.len() == attempt);
        // The stage of the whole sort is that of the node that is furthest behind.
        let rank = |share: &&ParticipantView| {
            ["", "sample", "read+river", "sort+write", "publish"]
                .iter()
                .position(|stage| *stage == share.stage)
        };
        let stage = self.nodes.values().min_by_key(rank).map_or("", |share| &share.stage).to_string();
        let same = |(before, number, since): &(String, usize, Stopwatch)| {
            (before, *number) == (&stage, attempt) && since.seconds() < LINE_EVERY_SECONDS
        };
        if stage.is_empty() || job.state != JobState::Running || self.last.as_ref().is_some_and(same) {
            return String::new();
        }
        let sum = |of: fn(&ParticipantView) -> u64| traffic(self.nodes.values().map(of).sum());
        let all = traffic(self.nodes.values().map(|share| share.all_bytes).max().unwrap_or(0));
        let line = format!(
            "attempt {}, {stage}: {} of {all} read, {} written, {}{}\n",
            attempt + 1,
            sum(|share| share.read_bytes),
            sum(|share| share.written_bytes),
            counted(self.nodes.len(), "node", "nodes"),
            self.pace(&stage)
        );
        self.last = Some((stage, attempt, Stopwatch::start()));
        line
    }

    /// The rate and the time left of this stage; empty at its beginning, when they are not known yet.
    fn pace(&self, stage: &str) -> String {
        let of: fn(&ParticipantView) -> u64 = match stage {
            "read+river" => |share: &ParticipantView| share.read_bytes,
            "sort+write" => |share: &ParticipantView| share.written_bytes,
            _ => return String::new(),
        };
        let there = || self.nodes.values().filter(|share| share.stage == stage);
        let since = there().map(|share| share.stage_seconds).fold(0.0, f64::max);
        let done: u64 = self.nodes.values().map(of).sum();
        let all = self.nodes.values().map(|share| share.all_bytes).max().unwrap_or(0);
        if since < PACE_AFTER_SECONDS || done == 0 {
            return String::new();
        }
        let rate = done as f64 / since;
        let left = seconds(all.saturating_sub(done) as f64 / rate);
        format!(", {}/s, {left} left", traffic(rate as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(host: &str, state: JobState, failed: usize, stage: &str, bytes: u64) -> JobReport {
        JobReport {
            id: "0123456789abcdef".into(),
            host: host.into(),
            by: "own".into(),
            command: ["sort", "in", "-o", "out"].map(String::from).to_vec(),
            state,
            status: None,
            signal: None,
            why: (state == JobState::Failed).then(|| "n2: it is full".into()),
            detached: false,
            pid: None,
            began_seconds: 0,
            seconds: 2.0,
            output_bytes: 0,
            tail: String::new(),
            share: Some(ParticipantView {
                hosts: vec!["n1".into(), "n2".into()],
                failed: vec!["n3: gone".into(); failed],
                stage: stage.into(),
                stage_seconds: 0.5,
                read_bytes: bytes,
                all_bytes: 100_000_000,
                ..ParticipantView::default()
            }),
        }
    }

    #[test]
    fn a_sort_has_a_line_for_each_of_its_nodes() {
        let jobs = [
            job("n1", JobState::Running, 1, "read+river", 20_000_000),
            job("n2", JobState::Failed, 0, "sample", 0),
        ];
        assert_eq!(
            sort(&jobs),
            "0123456789abcdef, asked and coordinated by own: sort in -o out\n\
             node  attempt  stage       read   written  rate     time    state\n\
             n1    2        read+river  20 MB  0 B      40 MB/s  2.00 s  running\n\
             n2    1        sample      0 B    0 B      -        2.00 s  failed (n2: it is full)\n\
             attempt 1 failed: n3: gone\n"
        );
        // The node that was left out does not know how the job ends.
        assert!(end_of_sort(&jobs).unwrap().unwrap_err().contains("can be asked"));
        let jobs = jobs.map(|job| JobReport { state: JobState::Failed, why: Some(job.host.clone()), ..job });
        assert_eq!(end_of_sort(&jobs), Some(Err("n1".into())));
    }

    #[test]
    fn a_line_of_progress_comes_at_every_stage_and_then_once_a_second() {
        let mut watched = Watched::default();
        let line = watched.sort(&job("n1", JobState::Running, 0, "read+river", 20_000_000));
        assert_eq!(
            line,
            "attempt 1, read+river: 20 MB of 100 MB read, 0 B written, 1 node, 40 MB/s, 2.00 s left\n"
        );
        let other = job("n2", JobState::Running, 0, "read+river", 30_000_000);
        assert_eq!(watched.sort(&other), "");
        assert_eq!(watched.sort(&job("n2", JobState::Running, 0, "sort+write", 50_000_000)), "");
        let line = watched.sort(&job("n2", JobState::Running, 1, "sample", 0));
        assert_eq!(line, "attempt 2, sample: 0 B of 100 MB read, 0 B written, 1 node\n");
    }
}
