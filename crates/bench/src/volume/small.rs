//! Small files on four hosts of a lab whose links are not shaped, two copies of each: made, read and removed by one process.
//!
//! Model: the manager is on the first host and the process with its mount on the last one; every host has a store. Beside
//! the rates, the row says how long the links take for one message and its answer between two processes: whatever the
//! process waits for costs at least that for each request that needs the answer to the one before.
//! Non-goals: many processes at a time, which wait for each other less.

use std::path::Path;

use thalweg_api::{BenchReport, BenchRow, BenchTarget};
use thalweg_io::process::Usage;

use super::access::{Access, How, Task};
use super::mounts::Striped;
use crate::lab::{Lab, Wanted, cpu_seconds};
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::process::{Series, median};
use thalweg_measure::{Asked, Result, failed};

/// The name of the row.
pub(super) const NAME: &str = "small-files";
const HOSTS: u32 = 4;
/// The number of files for a `--size` of 1 GB, and the bytes of each.
const FILES: (u64, u64) = (2000, 4096);
/// A directory of the file system that has the stores.
const LOCAL: &str = "local directory";
/// The messages of a measurement of the links: as long as a typical request, on any free port.
const MESSAGE_BYTES: u64 = 200;
const MESSAGES: u64 = 2000;
const PORT: u64 = 7701;

/// What is done with each file, and the rate of the first measurement.
const STEPS: [(&str, How, f64); 3] =
    [("created", How::Make, 313.0), ("read", How::Get, 609.0), ("removed", How::Remove, 661.0)];
/// The rates are to be this many times those of the first measurement.
const TIMES: f64 = 3.0;

/// Measures the row if it is asked for, or says why it cannot.
pub(super) fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    access: &Access,
    report: &mut BenchReport,
) -> Result<()> {
    if !asked.wants(NAME) {
        return Ok(());
    }
    asked.progress.begin(NAME, 0, 0, 0);
    match Lab::up(&asked.options.program, Wanted { hosts: HOSTS, ..Wanted::default() }) {
        Ok(lab) => report.rows.push(measured(asked, dir, access, &lab)?),
        Err(why) => report.notes.push(format!("left out: {NAME}: {why}")),
    }
    Ok(())
}

fn measured(asked: &Asked<'_>, dir: &DataDir, access: &Access, lab: &Lab) -> Result<BenchRow> {
    let files = (FILES.0 * asked.bytes / 1_000_000_000).max(10);
    let run = |lab: Option<&Lab>, directory: &Path, how| {
        std::fs::create_dir_all(directory).map_err(|e| failed("make", directory, &e))?;
        let (host, file) = (lab.map(|_| HOSTS), directory.display().to_string());
        access.run(lab, &[Task { how, host, file, chunk_bytes: FILES.1, first: 0, bytes: files }])
    };
    let volume = Striped::create(asked, lab)?;
    volume.directory("two", &["--copies", "2"])?;
    let (mut ours, mut local, mut all) =
        ([(); 3].map(|()| Vec::new()), [(); 3].map(|()| Vec::new()), Series::default());
    for _ in 0..asked.runs {
        asked.should_continue()?;
        dir.cool()?;
        let (mut seconds, mut cpu) = (0.0, 0.0);
        for (n, (_, how, _)) in STEPS.iter().enumerate() {
            let mounts = volume.mount_on(HOSTS, &[])?;
            let ids: Vec<u32> = (1..=HOSTS).map(|host| lab.host(host).pid).chain(mounts.ids()).collect();
            let used = || ids.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
            let before = used();
            let moved = run(Some(lab), &mounts.at(1).join("two/small"), *how)?;
            (seconds, cpu) = (seconds + moved.seconds, cpu + used() - before);
            ours[n].push(moved.seconds);
            local[n].push(run(None, &dir.path().join("local"), *how)?.seconds);
        }
        all.add(seconds, Usage { cpu_seconds: cpu, ..Usage::default() });
    }
    let rate = |seconds: &[f64]| files as f64 / median(seconds);
    let rates = |of: &[Vec<f64>; 3]| {
        let of = [0, 1, 2].map(|n| format!("{:.0} {}", rate(&of[n]), STEPS[n].0));
        format!("{} a second", of.join(", "))
    };
    let target = |(n, (what, _, first)): (usize, &(&str, How, f64))| {
        let (least, rate) = (TIMES * first, rate(&ours[n]));
        let met = (!asked.tiny).then_some(rate >= least);
        BenchTarget { target: format!("{what} a second >= {least:.0}"), measured: format!("{rate:.0}"), met }
    };
    let exchange = exchange(access, lab)?;
    Ok(BenchRow {
        name: NAME.into(),
        work: format!("{files} files of {} bytes made, read and removed, each in a new mount", FILES.1),
        bytes: 2 * files * FILES.1,
        ours: all.measure(),
        notes: vec![
            rates(&ours),
            format!("{LOCAL}: {}", rates(&local)),
            format!("a message and its answer take {:.0} us between two processes", exchange * 1e6),
        ],
        targets: STEPS.iter().enumerate().map(target).collect(),
        ..BenchRow::default()
    })
}

/// The seconds that the links and two processes take for a message and its answer.
fn exchange(access: &Access, lab: &Lab) -> Result<f64> {
    let task = |how, host| {
        let (file, chunk_bytes) = (lab.address(1), MESSAGE_BYTES);
        Task { how, host: Some(host), file, chunk_bytes, first: PORT, bytes: MESSAGES }
    };
    let moved = access.run(Some(lab), &[task(How::Answer, 1), task(How::Ask, HOSTS)])?;
    Ok(moved.seconds / MESSAGES as f64)
}
