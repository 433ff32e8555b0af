//! Suites that were written for other file systems. `./test` installs them below `target/tools`.

use std::path::PathBuf;
use std::process::Command;

use crate::bed::{Bed, has, sh, sh_output, skipped};

/// A program of `target/tools`, if it was installed.
fn tool(name: &str) -> Option<PathBuf> {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent()?.to_path_buf();
    let path = target.join("tools/bin").join(name);
    if !path.exists() {
        skipped(&format!("there is no {name}; ./test installs it"));
    }
    path.exists().then_some(path)
}

#[test]
fn pjdfstest_finds_nothing_wrong() {
    let (Some(tool), Some(bed)) = (tool("pjdfstest"), Bed::new()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("pjdfstest works as root");
    }
    let settings = "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\nrename_ctime = {}\n\
        [settings]\nnaptime = 0.01\nallow_remount = false\n\
        [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    std::fs::write(bed.beside("settings.toml"), settings).unwrap();
    let output = Command::new(tool)
        .arg("-c")
        .arg(bed.beside("settings.toml"))
        .arg("-p")
        .arg(bed.root())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    // Of its 398 cases it skips those for which this machine lacks something.
    assert!(out.contains("Summary: 0 failed, 16 skipped, 382 passed"), "{out}");
    bed.ends_sound();
}

#[test]
fn fsx_finds_no_byte_that_is_not_what_it_wrote() {
    let (Some(tool), Some(bed)) = (tool("fsx"), Bed::new()) else { return };
    for seed in 1..=3 {
        sh(&bed.root(), &format!("{} -N 1500 -S {seed} -q fsx-{seed}", tool.display()));
    }
    bed.ends_sound();
}

#[test]
fn fio_reads_what_it_wrote() {
    let Some(bed) = Bed::new() else { return };
    if !has("fio") {
        return;
    }
    let job = "fio --name=v --directory=. --size=16m --rw=randrw --bsrange=1k-300k --numjobs=2 --ioengine=psync \
        --verify=crc32c --fsync=32 --randseed=7";
    let output = sh_output(&bed.root(), job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    bed.ends_sound();
}
