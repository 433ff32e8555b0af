//! The header of lines: the first lines of every input, which stay in front of the output.
//!
//! Model: the lines are taken away from the inputs before anything else is known about them. All inputs must have the
//! same header, as parts of one table do, and the output has it once; an input without a byte has none.

use std::sync::Arc;

use thalweg_io::{Headless, InputLocation, Location, ReadFiles};

use crate::{Asked, Error, Progress, Result};

/// A longer header is more likely a file without lines.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// Takes the first `lines` lines of every input away, and returns them. Their last line has its newline.
pub(super) fn take(inputs: &mut [InputLocation], lines: usize, progress: &Progress) -> Result<Vec<u8>> {
    let mut headless: Vec<Arc<Headless>> = Vec::new();
    let mut first: Option<(String, Vec<u8>)> = None;
    if lines == 0 {
        return Ok(Vec::new());
    }
    for input in inputs {
        let known = headless.iter().find(|known| known.is_of(&input.fs)).cloned();
        let behind = known.unwrap_or_else(|| {
            let new = Arc::new(Headless::new(Arc::clone(&input.fs)));
            headless.push(Arc::clone(&new));
            new
        });
        let name = input.path.display().to_string();
        let taken =
            behind.take_header(&input.path, lines, HEADER_BYTES_MAX, || progress.cancelled().is_some())?;
        let Some(mut header) = taken else {
            return Err(match progress.cancelled() {
                Some(signal) => Error::Interrupted(signal),
                None => Asked::LongHeader { input: name, lines, max: HEADER_BYTES_MAX as u64 }.into(),
            });
        };
        if header.last().is_some_and(|last| *last != b'\n') {
            header.push(b'\n');
        }
        *input = Location::new(&(behind as Arc<dyn ReadFiles>), &input.path);
        match &first {
            _ if header.is_empty() => {}
            None => first = Some((name, header)),
            Some((_, common)) if *common == header => {}
            Some((one, _)) => {
                return Err(Asked::Headers { lines, first: one.clone(), other: name }.into());
            }
        }
    }
    Ok(first.map_or_else(Vec::new, |(_, header)| header))
}
