//! The manual page and the completions, made by the command from its table of flags and kept in `docs/`.

use std::path::Path;
use std::process::Command;

/// What to generate, and where it is kept.
const DOCUMENTS: &[(&str, &str)] = &[
    ("man", "docs/thalweg.1"),
    ("complete-bash", "docs/completions/thalweg.bash"),
    ("complete-zsh", "docs/completions/_thalweg"),
    ("complete-fish", "docs/completions/thalweg.fish"),
];

/// Writes them anew.
pub(crate) fn write(root: &Path) -> bool {
    DOCUMENTS.iter().all(|(what, path)| match generated(root, what) {
        Ok(text) => {
            let path = root.join(path);
            let folder = path.parent().expect("a document lies in a directory");
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
            written.inspect_err(|e| println!("{}: {e}", path.display())).is_ok()
        }
        Err(why) => {
            println!("{what}: {why}");
            false
        }
    })
}

/// Says which are not what would be written now.
pub(crate) fn check(root: &Path) -> bool {
    let mut good = true;
    for (what, path) in DOCUMENTS {
        let kept = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        match generated(root, what) {
            Ok(text) if text == kept => continue,
            Ok(_) => println!("{path} is not what the table of flags gives: cargo xtask docs"),
            Err(why) => println!("{what}: {why}"),
        }
        good = false;
    }
    good
}

fn generated(root: &Path, what: &str) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--package", "thalweg-cli", "--", "--generate", what]).current_dir(root);
    let output = cargo.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|e| e.to_string())
}
