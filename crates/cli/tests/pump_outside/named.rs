//! Trees of files with several names.
#![allow(dead_code)] // Each program of tests uses its part.

use thalweg_base::rng::Rng;

use crate::support::Place;

/// The files of a tree: path, inode, and time, permissions and bytes.
pub(crate) fn files(place: &Place, dir: &str) -> Vec<(String, String, String)> {
    let line = "find . -type f -printf '%P %i %T@ %m ' -exec cat {} \\; | sort";
    let found = place.shell(&format!("cd {dir}; {line}"));
    let parts = |file: &str| {
        let mut parts = file.splitn(3, ' ').map(String::from);
        let mut next = || parts.next().expect("three parts");
        (next(), next(), next())
    };
    found.is_done().lines().map(parts).collect()
}

/// The names of each file together, with what it is.
pub(crate) fn groups(files: Vec<(String, String, String)>) -> String {
    let mut groups = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (path, inode, is) in files {
        groups.entry(inode).or_default().push(format!("{path} {is}"));
    }
    let mut groups: Vec<_> = groups.into_values().map(|names| names.join(" = ")).collect();
    groups.sort();
    groups.join("\n")
}

/// Files with one to three names in `s`, and some of these names in `u`, in groups of its own.
pub(crate) fn planted(rng: &mut Rng) -> String {
    let mut line = String::from("rm -rf s u; mkdir -p s/d u/d; exec 2>/dev/null\n");
    let names = ["a", "b", "c", "d/a", "d/b", "e", "f"];
    for root in ["s", "u"] {
        let mut before: Option<&str> = None;
        for name in names {
            let path = format!("{root}/{name}");
            let stamp = 1_000_000_000 + rng.below(3) * 1000;
            let text = if root == "s" { "source" } else { "dest" };
            match (rng.below(4), before) {
                (0, _) => continue,
                (1 | 2, Some(first)) => line += &format!("ln {root}/{first} {path}\n"),
                _ => line += &format!("echo {text}{} > {path}; touch -d @{stamp} {path}\n", rng.below(2)),
            }
            before = Some(name);
        }
        line += &format!("touch -d @1000000000 {root}/d {root}\n");
    }
    line + "true"
}
