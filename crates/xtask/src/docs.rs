//! Documents that are generated and kept in `docs/`: the manual page and the completions, which the command makes from
//! its table of flags, and the tables of the benchmarks.

use std::path::Path;
use std::process::Command;

use crate::benchmarks;

/// What the command generates, and where it is kept.
const OF_THE_COMMAND: &[(&str, &str)] = &[
    ("man", "docs/thalweg.1"),
    ("complete-bash", "docs/completions/thalweg.bash"),
    ("complete-zsh", "docs/completions/_thalweg"),
    ("complete-fish", "docs/completions/thalweg.fish"),
];

/// Writes them anew.
pub(crate) fn write(root: &Path) -> bool {
    documents(root).all(|(path, generated)| {
        let path = root.join(path);
        let folder = path.parent().expect("a document lies in a directory");
        let written = generated.and_then(|text| {
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
            written.map_err(|e| e.to_string())
        });
        written.inspect_err(|why| println!("{}: {why}", path.display())).is_ok()
    })
}

/// Says which are not what would be written now.
pub(crate) fn check(root: &Path) -> bool {
    let mut good = true;
    for (path, generated) in documents(root) {
        let kept = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        match generated {
            Ok(text) if text == kept => continue,
            Ok(_) => println!("{path} is out of date: cargo xtask docs"),
            Err(why) => println!("{path}: {why}"),
        }
        good = false;
    }
    good
}

/// Each with its path and its text.
fn documents(root: &Path) -> impl Iterator<Item = (&'static str, Result<String, String>)> {
    let benchmarks = std::iter::once_with(|| (benchmarks::PAGE, benchmarks::generated(root)));
    benchmarks.chain(OF_THE_COMMAND.iter().map(|(what, path)| (*path, by_the_command(root, what))))
}

fn by_the_command(root: &Path, what: &str) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--package", "thalweg-cli", "--", "--generate", what]).current_dir(root);
    let output = cargo.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|e| e.to_string())
}
