//! The verb `shuffle`: a sort by random tags.
//!
//! Model: every record is given a tag, a hash of the seed and of the byte at which it begins in all inputs together, and
//! sorted by it (`record::Tags`).
//! Law: out = in; the same seed and inputs give the same output, whatever the memory and the number of threads.
//! Non-goals: going on from what an earlier run left.

use thalweg_api::Receipt;
use thalweg_record::{Layout, TAG_BYTES};
use thalweg_sort::Sort;

use super::sort::{resolve, run};
use crate::{Error, Progress, Result, ShuffleOptions, SortOptions, machine};

/// Puts the records of the inputs into the output in random order. The receipt's law: out = in.
pub fn shuffle(options: &ShuffleOptions, progress: &Progress) -> Result<Receipt> {
    has_room(options.layout)?;
    let sort = SortOptions {
        memory: options.memory,
        scratch: options.scratch.clone(),
        scratch_limit: options.scratch_limit,
        threads: options.threads,
        io: options.io,
        ..SortOptions::new(options.inputs.clone(), options.output.clone(), options.layout)
    };
    let (io, fallback) = machine::io_of_sort(&sort)?;
    let definite = Sort { shuffle: Some(options.seed), ..resolve(&sort, &io)? };
    run(&definite, &io, fallback, progress)
}

/// Fails if records that lie so have no room for a tag.
pub(super) fn has_room(layout: Layout) -> Result<()> {
    let most = u32::MAX - TAG_BYTES as u32;
    if matches!(layout, Layout::Fixed(n) if n > most) {
        return Err(Error::CouldNot(format!(
            "records to shuffle have at most {most} bytes; give a smaller --record"
        )));
    }
    Ok(())
}
