//! The hidden names of a sort's files: the partial output, the manifest, the scratch files.
//!
//! Invariant: names depend on the output's path alone, so a later run of the same sort finds the files of an
//! interrupted one, and no other sort does.

use std::ffi::OsString;
use std::path::Path;

use thalweg_io::{Location, directory_of, hidden};

use crate::options::Sort;

/// The names of the files that a sort creates besides its output.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// The name of the output until it is complete.
    pub(crate) partial: Location,
    /// The manifest, in the directory of the output.
    pub(crate) manifest: Location,
    /// The name of the scratch file in each scratch directory.
    pub(crate) scratch: OsString,
}

impl Names {
    pub(crate) fn of(sort: &Sort) -> Names {
        if !sort.output_is_stream {
            return Names::of_file(&sort.output);
        }
        // Many sorts may write to the same stream at once, and none can resume.
        let scratch = hidden::unique("scratch");
        let nowhere = sort.output.at("");
        Names { partial: nowhere.clone(), manifest: nowhere, scratch: scratch.into() }
    }

    /// The names for this output file.
    pub(crate) fn of_file(output: &Location) -> Names {
        Names {
            partial: output.at(hidden::beside(&output.path, "partial")),
            manifest: output.at(hidden::beside(&output.path, "manifest")),
            scratch: hidden::elsewhere(&output.path, "scratch"),
        }
    }

    /// Locates a file that a manifest lists: the partial output, or a scratch file in one of these directories. An
    /// unknown directory is on the back end of the first.
    pub(crate) fn locate(&self, path: &Path, scratch: &[Location]) -> Location {
        if path == self.partial.path {
            return self.partial.clone();
        }
        let directory = scratch.iter().find(|directory| directory.path == directory_of(path));
        directory.unwrap_or(&scratch[0]).at(path)
    }

    /// Whether a path has the name of this sort's scratch files.
    pub(crate) fn is_scratch(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == self.scratch)
    }
}
