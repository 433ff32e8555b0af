//! The verb `plan`: what a sort would do and need, how long it would take, and which rates that is based on.
//!
//! Model: the sort is resolved and laid out as `sort` does it, sample included; then the machine is
//! measured, or what an earlier plan measured is used; then the forecast is arithmetic.
//! Invariant: runs nothing; no name is left on any disk but that of the kept calibration.
//! Non-goals: streams, whose size is unknown before their end.

use thalweg_api::Plan;
use thalweg_io::Location;
use thalweg_sort::{Sort, forecast, lay_out};

use super::header;
use super::sort::{error_of, resolve};
use crate::machine::Disks;
use crate::output::Target;
use crate::{BadPath, Progress, Result, WorkOptions, calibrate};

/// Plans a sort. Runs nothing.
pub fn plan(options: &WorkOptions) -> Result<Plan> {
    let disks = Disks::of_sort(options)?;
    let mut definite = resolve(options, &disks)?;
    check_places(options, &definite, &disks)?;
    definite.header = header::take(&mut definite.inputs, options.header, &Progress::default())?;
    // Before the calibration, whose memory would count as the process's own.
    let facts = lay_out(&definite).map_err(|e| error_of(e, &Progress::default()))?;
    let hardware = calibrate::measured(&definite);
    Ok(forecast(&facts, &hardware))
}

/// Checks whether everything is where it should be for this sort.
fn check_places(options: &WorkOptions, definite: &Sort, disks: &Disks) -> Result<()> {
    for input in &definite.inputs {
        let there = input.stat()?;
        if !there.is_regular && !there.is_directory {
            return Err(BadPath::PlanOfStream(input.path.clone()).into());
        }
    }
    Target::of(&disks.output, &options.output)?;
    definite.scratch.iter().try_for_each(check_scratch)
}

fn check_scratch(directory: &Location) -> Result<()> {
    if directory.stat()?.is_directory {
        return Ok(());
    }
    Err(BadPath::ScratchNotDirectory(directory.path.to_path_buf()).into())
}
