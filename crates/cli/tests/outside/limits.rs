//! Limits that others set: control groups, small stacks, no /proc.

use thalweg_api::{Receipt, from_json};
use thalweg_io::process;

use super::support::{Place, skipped};

const MIB: u64 = 1 << 20;

/// A control group with a limit, and one without in it; removed when the test ends.
struct Group {
    outer: String,
    inner: String,
}

impl Group {
    /// `None` if this machine, or its user, has none.
    fn new(limit: u64) -> Option<Group> {
        let name = format!("thalweg-limits-{}", std::process::id());
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        roots.into_iter().find_map(|(root, file)| {
            let outer = format!("{root}/{name}");
            let group = Group { inner: format!("{outer}/inner"), outer };
            std::fs::create_dir(&group.outer).ok()?;
            // Version 2 passes the controller on only where it is told to.
            let _ = std::fs::write(format!("{root}/cgroup.subtree_control"), "+memory");
            std::fs::write(format!("{}/{file}", group.outer), limit.to_string()).ok()?;
            std::fs::create_dir(&group.inner).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.inner);
        let _ = std::fs::remove_dir(&self.outer);
    }
}

/// With 100 %, or with the limit of the group, a sort was killed without a line.
#[test]
fn memory_is_of_what_the_control_group_allows_and_more_is_refused() {
    let Some(group) = Group::new(128 * MIB) else { return skipped("no control group can be made") };
    let place = Place::new();
    place.shell("$T gen 2M records -q").is_done();
    let within =
        |args: &str| place.shell(&format!("echo $$ > {}/cgroup.procs && exec $T {args}", group.inner));
    for verb in ["sort records -o out --datamation", "shuffle records -o out --record 100 --seed 1"] {
        let told = within(&format!("{verb} --memory 100% --json"));
        let receipt: Receipt = from_json(told.is_done()).unwrap();
        let (given, peak) = (receipt.memory.limit_bytes, receipt.memory.peak_bytes);
        assert!(given > 100 * MIB && given < 122 * MIB && peak > 64 * MIB, "{given} {peak}");
        for beyond in ["128MiB", "1GiB"] {
            within(&format!("{verb} --memory {beyond}")).is_refused(&[
                "control group",
                "128 MiB",
                "at most 116.",
            ]);
        }
    }
    within("sort records -o out --datamation --memory 116MiB -q").is_done();
    within("partition records -o out{} --record 100 --parts 2 --pick hash --memory 2GiB")
        .is_refused(&["2 GiB"]);
}

/// The stack of the first thread overflowed in 13 of 40 runs.
#[test]
fn a_small_stack_is_enough() {
    let place = Place::new();
    place.shell("$T gen 2000 records -q; ulimit -s 64; for i in $(seq 40); do $T sort records -o out --datamation -q || exit; done; $T --help > /dev/null").is_done();
}

#[test]
fn a_peak_beyond_the_promise_is_said_where_there_is_no_proc() {
    if !process::is_root() {
        return skipped("only root can hide /proc");
    }
    let place = Place::new();
    place.shell("$T gen 400k records -q").is_done();
    for memory in [16, 64] {
        let line = format!(
            "exec unshare -m bash -c 'mount -t tmpfs none /proc; exec $T sort records -o out --datamation --memory {memory}MiB'"
        );
        let told = place.shell(&line);
        // What the process itself occupies may be all of it.
        if memory == 16 && told.status == Some(2) {
            told.is_refused(&["16 MiB is too small"]);
            continue;
        }
        let text = told.is_done();
        let line = text.lines().find(|line| line.starts_with("memory ")).unwrap();
        println!("{line}");
        let is_said = line.contains("MORE than was promised");
        assert!(is_said || line.contains("promised at most"), "{line}");
        // The kernel's own count.
        let most = (memory * MIB / 20 * 21).max((memory + 2) * MIB);
        assert!(told.peak_bytes <= most || is_said, "{} of {most}: {line}", told.peak_bytes);
    }
}
