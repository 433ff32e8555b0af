//! Calibration: how fast this machine's disk and cores are, for forecasts.
//!
//! Model: a plan measures for about half a second and keeps the result for a day under the user's cache
//! directory, one file for each pair of disks, back end, host and version. A sort only looks there: it
//! never spends more than the reading of one small file, and assumes slow rates if there is none.
//! Invariant: a measurement is far smaller than any work worth predicting, and never does the work itself: cores
//! are measured on records of our own, disks on at most an eighth of an input.
//! Invariant: no failure here fails a verb; a rate that cannot be measured is assumed, and the plan says so.
//! Non-goals: how fast a disk is after minutes of writing, or under other load.

mod cpu;
mod disk;

use std::path::{Path, PathBuf};

use thalweg_api::{Hardware, from_json, to_json};
use thalweg_base::clock::wall_seconds;
use thalweg_io::{Access, Caching, Location, hidden};
use thalweg_sort::Sort;

use crate::{Error, IoChoice, Result, machine};

/// How long a calibration is valid: a day.
const VALID_SECONDS: u64 = 24 * 60 * 60;
/// The longest time for each part of a thorough measurement of a disk: long enough that a rate limiter that works in
/// intervals of tenths of a second shows.
const PROBE_SECONDS: f64 = 1.0;
/// The most bytes of a stored calibration, which is one line; a longer file is ignored.
const KEPT_BYTES_MAX: usize = 4096;

/// Bytes of the records that the cores' rates are measured on.
pub fn calibration_bytes() -> u64 {
    cpu::RECORDS * thalweg_record::RECORD_BYTES as u64
}

/// The rates that are known without measuring: stored or assumed.
pub(crate) fn known(sort: &Sort) -> Hardware {
    cache_path(sort).and_then(|path| read_cached(&path)).unwrap_or_else(assumed)
}

/// The stored rates, or else rates that are measured now and stored.
pub(crate) fn measured(sort: &Sort) -> Hardware {
    let path = cache_path(sort);
    if let Some(kept) = path.as_ref().and_then(read_cached) {
        return kept;
    }
    match measure(sort) {
        Some(hardware) => {
            if let Some(path) = &path {
                // If the directory cannot be written, the next plan measures again.
                let _ = keep(path, &hardware);
            }
            hardware
        }
        None => assumed(),
    }
}

/// Rates that any machine of the last ten years reaches.
fn assumed() -> Hardware {
    Hardware {
        measured_bytes: 0,
        measured_at_seconds: 0,
        cores: machine::cores() as u32,
        read_bytes_per_second: 400e6,
        write_bytes_per_second: 300e6,
        mixed_bytes_per_second: 350e6,
        sync_seconds: 0.05,
        distribute_records_per_second: 4e6,
        sort_records_per_second: 4e6,
    }
}

fn measure(sort: &Sort) -> Option<Hardware> {
    let largest = sort.inputs.iter().max_by_key(|input| input.stat().map_or(0, |there| there.len));
    let scratch = sort.scratch.first()?;
    let disk = disk::measure(largest, scratch, disk::PART_SECONDS).ok()?;
    let cpu = cpu::measure(&scratch.fs, 1).ok()?;
    let hardware = with_cores(with_disk(assumed(), &disk), &cpu);
    is_usable(&hardware).then_some(hardware)
}

/// Sets the measured rates of a disk. Rounded, so that the rates are equal to those that are read back from JSON.
fn with_disk(hardware: Hardware, disk: &disk::Rates) -> Hardware {
    Hardware {
        measured_at_seconds: wall_seconds(),
        read_bytes_per_second: disk.read.round(),
        write_bytes_per_second: disk.write.round(),
        mixed_bytes_per_second: disk.mixed.round(),
        sync_seconds: (disk.sync_seconds * 1e6).round() / 1e6,
        ..hardware
    }
}

/// Sets the measured rates of the cores.
fn with_cores(hardware: Hardware, cpu: &cpu::Rates) -> Hardware {
    Hardware {
        measured_bytes: calibration_bytes(),
        distribute_records_per_second: cpu.distribute.round(),
        sort_records_per_second: cpu.sort.round(),
        ..hardware
    }
}

/// Measures the disk below a directory, for a node; all else is assumed. Takes about five seconds if `thorough`, else
/// about two, and longer if the disk takes longer than that for 8 MiB.
pub fn probe_disk(directory: &Path, thorough: bool) -> Result<Hardware> {
    let (io, _) = machine::io(IoChoice::Auto)?;
    let part_seconds = if thorough { PROBE_SECONDS } else { disk::PART_SECONDS };
    let disk = disk::measure(None, &Location::new(&io, directory), part_seconds)?;
    check_rates(Hardware { measured_bytes: calibration_bytes(), ..with_disk(assumed(), &disk) })
}

/// Measures all cores at once, for a node: other nodes on the same machine that measure at the same time then compete
/// with it as they do in a sort. All else is assumed.
pub fn probe_cores() -> Result<Hardware> {
    let (io, _) = machine::io(IoChoice::Auto)?;
    let cpu = cpu::measure(&io, machine::cores())?;
    check_rates(with_cores(assumed(), &cpu))
}

fn check_rates(hardware: Hardware) -> Result<Hardware> {
    is_usable(&hardware).then_some(hardware).ok_or(Error::Rates)
}

/// The rates of one core, measured now; all other rates are assumed.
pub(crate) fn cores_here() -> Hardware {
    let measured = machine::io(IoChoice::Auto).ok().and_then(|(io, _)| cpu::measure(&io, 1).ok());
    measured.map_or_else(assumed, |cpu| with_cores(assumed(), &cpu))
}

/// Whether all rates are finite and large enough to divide by.
pub(crate) fn is_usable(hardware: &Hardware) -> bool {
    let rates = [
        hardware.read_bytes_per_second,
        hardware.write_bytes_per_second,
        hardware.mixed_bytes_per_second,
        hardware.distribute_records_per_second,
        hardware.sort_records_per_second,
    ];
    let sync_is_sane = hardware.sync_seconds.is_finite() && hardware.sync_seconds >= 0.0;
    hardware.cores > 0 && sync_is_sane && rates.iter().all(|rate| rate.is_finite() && *rate >= 1.0)
}

/// Where the calibration for this sort's disks is stored; `None` if there is no cache directory.
fn cache_path(sort: &Sort) -> Option<Location> {
    let scratch = sort.scratch.first()?;
    let read = sort.inputs.first()?.stat().ok()?.device;
    let written = scratch.stat().ok()?.device;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
    let (backend, version) = (scratch.fs.name(), env!("CARGO_PKG_VERSION"));
    let name = format!("calibration-{host}-{read:x}-{written:x}-{backend}-{version}.json");
    Some(scratch.at(cache_directory()?.join(name)))
}

/// The XDG Base Directory Specification says to ignore relative paths.
fn cache_directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("thalweg"))
}

fn read_cached(kept: &Location) -> Option<Hardware> {
    let file = kept.as_input().open(Caching::Cached).ok()?;
    let mut bytes = vec![0; KEPT_BYTES_MAX];
    let len = file.read_at(0, &mut bytes).ok()?;
    let hardware: Hardware = from_json(std::str::from_utf8(&bytes[..len]).ok()?).ok()?;
    let age = wall_seconds().checked_sub(hardware.measured_at_seconds)?;
    (hardware.measured_bytes > 0 && age < VALID_SECONDS && is_usable(&hardware)).then_some(hardware)
}

/// Writes under another name first, so that a plan that runs at the same time never reads half a file.
fn keep(kept: &Location, hardware: &Hardware) -> std::io::Result<()> {
    let directory = kept.path.parent().expect("it is in the cache directory");
    std::fs::create_dir_all(directory)?;
    let partial = kept.at(directory.join(hidden::unique("partial")));
    let written = partial
        .open(Access::Create)
        .and_then(|file| file.write_at(0, to_json(hardware).as_bytes()))
        .and_then(|()| kept.fs.rename(&partial.path, &kept.path));
    written.map_err(|e| {
        let _ = partial.remove();
        e.source
    })
}

#[cfg(test)]
mod tests {
    use thalweg_io::sim::Sim;

    use super::*;

    #[test]
    fn what_is_assumed_can_be_divided_by_and_says_that_it_is_assumed() {
        assert!(is_usable(&assumed()));
        assert_eq!(assumed().measured_bytes, 0);
        assert!(!is_usable(&Hardware { read_bytes_per_second: f64::NAN, ..assumed() }));
        assert!(!is_usable(&Hardware { sort_records_per_second: 0.0, ..assumed() }));
    }

    #[test]
    fn only_what_was_measured_lately_and_can_be_read_is_used() {
        let sim = Sim::new(1);
        let location = Location::new(&sim.io(), "/kept");
        let path = &location.path;
        let fresh = Hardware { measured_bytes: 1, measured_at_seconds: wall_seconds(), ..assumed() };
        let kept = |hardware: &Hardware| {
            sim.put(path, to_json(hardware).as_bytes());
            read_cached(&location)
        };
        assert_eq!(kept(&fresh), Some(fresh));
        let old = fresh.measured_at_seconds - VALID_SECONDS;
        assert_eq!(kept(&Hardware { measured_at_seconds: old, ..fresh }), None);
        let to_come = fresh.measured_at_seconds + 100;
        assert_eq!(kept(&Hardware { measured_at_seconds: to_come, ..fresh }), None);
        assert_eq!(kept(&Hardware { measured_bytes: 0, ..fresh }), None);
        assert_eq!(kept(&Hardware { write_bytes_per_second: -1.0, ..fresh }), None);
        sim.put(path, b"{\"measured_bytes\": ");
        assert_eq!(read_cached(&location), None);
        assert_eq!(read_cached(&location.at("/none")), None);
    }
}
