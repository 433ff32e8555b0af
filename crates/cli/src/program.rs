//! How this program was started, as needed to start it again: as the command itself, or as a script that calls it.

use std::ffi::OsString;
use std::io::Result;
use std::path::PathBuf;
use std::sync::OnceLock;

use thalweg_verbs::Usage;

/// The build of this program: 16 hexadecimal digits, which differ if the sources do.
pub(crate) const BUILD: &str = env!("THALWEG_BUILD");

/// The script that this program runs as.
static SCRIPT: OnceLock<Script> = OnceLock::new();

struct Script {
    path: PathBuf,
    args: Vec<OsString>,
}

/// Declares that this program is a script at this path, started with these arguments. Only the first call counts.
pub(crate) fn is_script(path: PathBuf, args: Vec<OsString>) {
    let _ = SCRIPT.set(Script { path, args });
}

/// The program to start.
pub(crate) fn path() -> Result<PathBuf> {
    SCRIPT.get().map_or_else(std::env::current_exe, |script| Ok(script.path.clone()))
}

/// The arguments that this program was started with.
pub(crate) fn args() -> Vec<OsString> {
    SCRIPT.get().map_or_else(|| std::env::args_os().skip(1).collect(), |script| script.args.clone())
}

/// The path of the program, as a file that runs on another machine.
pub(crate) fn to_copy() -> std::result::Result<PathBuf, Usage> {
    if let Some(Script { path, .. }) = SCRIPT.get() {
        return Err(Usage(format!(
            "install copies this program, and {} is a script of a Python package; use the thalweg that cargo builds",
            path.display()
        )));
    }
    path().map_err(|e| Usage(format!("install copies this program, and it cannot be found: {e}")))
}
