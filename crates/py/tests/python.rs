//! The tests in `python/tests`, run by pytest against the library that cargo has built beside this program.
//!
//! Model: the package is laid out in a directory of its own, as `pip install` would, from links to its files; the virtual
//! environment is that of `.ci/need`. `conftest.py` prints what a test program prints, so that `./test` counts each test.
#![allow(clippy::disallowed_methods)] // A test lays out files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let own = std::env::current_exe().expect("this program has a path");
    let built = own.parent().expect("it lies in a directory").join("libthalweg_py.so");
    let python = target_of(&own).join("python/bin/python");
    if !python.exists() {
        return skipped("there is no virtual environment: see need_python in .ci/need");
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", std::process::id()));
    lay_out(&root, &built, &python, &place).expect("the package is laid out");
    let names = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let names: Vec<String> = names.collect();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"]).arg(place.join("tmp"));
    match &names[..] {
        [] => pytest.arg("python/tests"),
        names => pytest.args(names),
    };
    pytest.current_dir(&root).env("PYTHONPATH", place.join("site"));
    pytest.env("PYTHONPYCACHEPREFIX", place.join("compiled"));
    pytest.env("PATH", format!("{}:{path}", place.join("bin").display()));
    let status = pytest.status().expect("python starts");
    fs::remove_dir_all(&place).expect("what was laid out is removed");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The target directory, which holds the profile's directory, which holds `deps`.
fn target_of(own: &Path) -> PathBuf {
    own.ancestors().nth(3).expect("cargo has built this program").to_path_buf()
}

/// Makes `site/thalweg`, the package, its entry point for fsspec, and `bin/thalweg`, the command.
fn lay_out(root: &Path, built: &Path, python: &Path, place: &Path) -> std::io::Result<()> {
    let (package, bin) = (place.join("site/thalweg"), place.join("bin"));
    fs::create_dir_all(&package)?;
    fs::create_dir_all(&bin)?;
    for entry in fs::read_dir(root.join("python/thalweg"))? {
        let entry = entry?;
        symlink(entry.path(), package.join(entry.file_name()))?;
    }
    let info = place.join("site/thalweg-0.dist-info");
    fs::create_dir_all(&info)?;
    fs::write(info.join("METADATA"), "Name: thalweg\nVersion: 0\n")?;
    fs::write(
        info.join("entry_points.txt"),
        "[fsspec.specs]\nthalweg = thalweg.filesystem:VolumeFileSystem\n",
    )?;
    symlink(built, package.join("_native.abi3.so"))?;
    let mut script =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(bin.join("thalweg"))?;
    write!(script, "#!{}\nfrom thalweg._command import main\nmain()\n", python.display())
}

/// Says that none of the tests can run. `./test` counts the lines of `THALWEG_SKIPPED`.
fn skipped(why: &str) -> ExitCode {
    if let Some(file) = std::env::var_os("THALWEG_SKIPPED") {
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(file).expect("it can be written");
        writeln!(file, "python {why}").expect("it can be written");
    }
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; {why}");
    ExitCode::SUCCESS
}
