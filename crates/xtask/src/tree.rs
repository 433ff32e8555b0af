//! The files of the repository: those that git tracks, or would track.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The files that the rules apply to, with their paths from the root.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

/// A text file.
pub(crate) struct File {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The directory of files that break the rules, which are used to test the rules.
const FIXTURES: &str = "crates/xtask/fixtures/";

impl Tree {
    /// The repository, without fixtures.
    pub(crate) fn of_repository(root: &Path) -> Tree {
        let mut paths = tracked(root).unwrap_or_else(|| walked(root, root));
        paths.retain(|path| !path.starts_with(FIXTURES));
        Tree::read(root, paths)
    }

    /// Every file under a directory.
    #[cfg(test)]
    pub(crate) fn of_directory(root: &Path) -> Tree {
        Tree::read(root, walked(root, root))
    }

    fn read(root: &Path, mut paths: Vec<String>) -> Tree {
        paths.sort();
        // A file that git lists may be deleted, and style rules do not apply to binary files.
        let read = |path: String| Some(File { text: std::fs::read_to_string(root.join(&path)).ok()?, path });
        Tree { files: paths.into_iter().filter_map(read).collect() }
    }

    /// Rust sources.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.starts_with("crates/") && file.path.ends_with(".rs"))
    }

    /// The file with this path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// The files that git tracks or does not ignore; `None` outside a checkout.
fn tracked(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split('\0').filter(|path| !path.is_empty()).map(String::from).collect())
}

fn walked(root: &Path, folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let entries = folder.read_dir().into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["target", ".git", ".venv"].contains(&name.as_str()) {
            paths.extend(walked(root, &path));
        } else if path.is_file() {
            paths.push(from_root(root, &path));
        }
    }
    paths
}

fn from_root(root: &Path, path: &Path) -> String {
    let inside: PathBuf = path.strip_prefix(root).expect("a walk stays under its root").into();
    inside.to_string_lossy().replace('\\', "/")
}
