//! The hidden names of the files that a sort makes: the partial output, the manifest, the scratch files.
//!
//! Invariant: names follow from the output's path alone, so that a later run of the same sort finds the files of an
//! interrupted one, and no other sort's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thalweg_io::hidden;

use crate::asked::Sort;

/// The names that a sort uses beside its inputs and its output.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// The output until it is whole.
    pub(crate) partial: PathBuf,
    /// Where the manifest is, beside the output.
    pub(crate) manifest: PathBuf,
    /// The name of the scratch file in each scratch directory.
    pub(crate) scratch: OsString,
}

impl Names {
    pub(crate) fn of(sort: &Sort) -> Names {
        if !sort.output_is_stream {
            return Names::of_file(&sort.output);
        }
        // Many sorts may write to a stream of this name at once, and none can be gone on from.
        let scratch = hidden::unique("scratch");
        Names { partial: PathBuf::new(), manifest: PathBuf::new(), scratch: scratch.into() }
    }

    /// Of sorts whose output is this file.
    pub(crate) fn of_file(output: &Path) -> Names {
        Names {
            partial: hidden::beside(output, "partial"),
            manifest: hidden::beside(output, "manifest"),
            scratch: hidden::elsewhere(output, "scratch"),
        }
    }

    /// Whether a path has the name of this sort's scratch files.
    pub(crate) fn is_scratch(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == self.scratch)
    }
}
