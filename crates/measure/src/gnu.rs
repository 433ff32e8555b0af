//! GNU sort on the same lines.
//!
//! Invariant: it gets the same memory and the same number of lanes as ours.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::machine;
use crate::process::{Ended, whole_process};

/// GNU sort. It exists only if the command `sort` is GNU's.
pub(crate) struct Gnu(());

impl Gnu {
    /// Finds it; an error says why it is not measured.
    pub(crate) fn find() -> std::result::Result<Gnu, String> {
        let told = Command::new("sort").arg("--version").output();
        match told {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("GNU coreutils") => Ok(Gnu(())),
            _ => Err("GNU sort is not installed (apt-get install coreutils)".to_string()),
        }
    }

    /// Sorts lines as ours does: by their bytes, stably.
    pub(crate) fn sort(&self, input: &Path, output: &Path, memory_bytes: u64) -> Result<Ended> {
        let mut command = Command::new("sort");
        command.env("LC_ALL", "C").arg("-s").arg(format!("--parallel={}", machine::cores()));
        command.arg(format!("-S{memory_bytes}b")).arg("-T").arg(output.parent().unwrap_or(Path::new(".")));
        whole_process(command.arg("-o").arg(output).arg(input))
    }
}
