//! The generated documents in `docs/`: the manual page and the completions, which the command generates from its table
//! of flags, the tables and pictures of the benchmarks, and the classes of the Python package.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::test_programs::text_of;
use crate::{benchmarks, python};

/// The documents that the command generates: the value of `--generate`, and the path.
const OF_THE_COMMAND: &[(&str, &str)] = &[
    ("man", "docs/thalweg.1"),
    ("complete-bash", "docs/completions/thalweg.bash"),
    ("complete-zsh", "docs/completions/_thalweg"),
    ("complete-fish", "docs/completions/thalweg.fish"),
];

/// Generates and writes all documents.
pub(crate) fn write(root: &Path) -> bool {
    documents(root).all(|(path, generated)| {
        let path = root.join(&path);
        let folder = path.parent().expect("a document lies in a directory");
        let written = generated.and_then(|text| {
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
            written.map_err(|e| e.to_string())
        });
        written.inspect_err(|why| println!("{}: {why}", path.display())).is_ok()
    })
}

/// Names the documents that are out of date. Returns whether there are none.
pub(crate) fn check(root: &Path) -> bool {
    let mut good = true;
    for (path, generated) in documents(root) {
        let kept = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        match generated {
            Ok(text) if text == kept => continue,
            Ok(_) => println!("{path} is out of date: cargo xtask docs"),
            Err(why) => println!("{path}: {why}"),
        }
        good = false;
    }
    good
}

/// The path and the text of each document.
fn documents(root: &Path) -> impl Iterator<Item = (String, Result<String, String>)> {
    let benchmarks = std::iter::once_with(|| (benchmarks::PAGE.to_string(), benchmarks::generated(root)));
    let pictures = match benchmarks::pictures(root) {
        Ok(pictures) => pictures.into_iter().map(|(path, svg)| (path, Ok(svg))).collect(),
        Err(why) => vec![(benchmarks::PAGE.to_string(), Err(why))],
    };
    let command = built(root);
    let by_the_command = move |(what, path): &(&str, &str)| {
        (path.to_string(), command.clone().and_then(|command| generated(&command, what)))
    };
    let classes = match python::modules(root) {
        Ok(modules) => modules.into_iter().map(|(path, text)| (path, Ok(text))).collect(),
        Err(why) => vec![("python/thalweg".to_string(), Err(why))],
    };
    benchmarks.chain(pictures).chain(classes).chain(OF_THE_COMMAND.iter().map(by_the_command))
}

/// Builds the command with the tests' profile, to reuse their artefacts, and returns its path.
fn built(root: &Path) -> Result<PathBuf, String> {
    let mut cargo = crate::command(root, "cargo");
    cargo.args(["build", "--quiet", "--workspace", "--bin=thalweg", "--profile=test"]);
    cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = cargo.output().map_err(|e| e.to_string())?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let path = messages.lines().find_map(|message| text_of(message, "executable"));
    path.map(PathBuf::from).ok_or_else(|| "the command does not build".to_string())
}

fn generated(command: &Path, what: &str) -> Result<String, String> {
    let output = Command::new(command).args(["--generate", what]).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|e| e.to_string())
}
