//! The verb `plan`: what a sort would do, take and last, and on which rates that rests.
//!
//! Model: the sort is resolved and laid out as `sort` does it, sample included; then the machine is
//! measured, or what an earlier plan measured is used; then the forecast is arithmetic.
//! Invariant: runs nothing; no name is left on any disk but that of the kept calibration.
//! Non-goals: streams, whose size nobody knows before their end.

use std::path::Path;
use std::sync::Arc;

use thalweg_api::Plan;
use thalweg_io::FileSystem;
use thalweg_sort::{Sort, forecast, lay_out};

use super::sort::{error_of, resolve};
use crate::output::Target;
use crate::{Error, Progress, Result, WorkOptions, calibrate, machine};

/// Says what a sort would do. Runs nothing.
pub fn plan(options: &WorkOptions) -> Result<Plan> {
    let (io, _) = machine::io_of_sort(options)?;
    let definite = resolve(options, &io)?;
    check_places(options, &definite, &io)?;
    // Before the calibration, whose memory would count as the process's own.
    let facts = lay_out(&definite, &io).map_err(|e| error_of(e, &Progress::default()))?;
    let hardware = calibrate::measured(&definite, &io);
    Ok(forecast(&facts, &hardware))
}

/// Whether everything is where it should be for this sort.
fn check_places(options: &WorkOptions, definite: &Sort, io: &Arc<dyn FileSystem>) -> Result<()> {
    for input in &definite.inputs {
        let there = io.stat(input)?;
        if !there.is_regular && !there.is_directory {
            return Err(Error::CouldNot(format!(
                "cannot plan for {}: it is a stream, whose size is known only at its end; name a file",
                input.display()
            )));
        }
    }
    Target::of(io, &options.output)?;
    definite.scratch.iter().try_for_each(|directory| check_scratch(directory, io))
}

fn check_scratch(directory: &Path, io: &Arc<dyn FileSystem>) -> Result<()> {
    if io.stat(directory)?.is_directory {
        return Ok(());
    }
    let name = directory.display();
    Err(Error::CouldNot(format!("{name} is not a directory; give another --scratch")))
}
