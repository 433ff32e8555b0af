//! A program that sorts in two of its threads finds its process as it was: limits, signals, allocator, mapped code.
//!
//! The test program starts itself once more as that program, under strace if strace works. The system calls between two
//! marks are those of the sorts.
#![allow(clippy::disallowed_methods)] // A test looks at files and processes from outside.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg::{Progress, Task};
use thalweg_base::rng::Rng;

/// Names the directory in which the program sorts; without it, this is the test.
const PLACE: &str = "THALWEG_TEST_HOST";
const TEST: &str = "two_sorts_in_two_threads_leave_the_process_as_it_was";
const MEMORY_BYTES: u64 = 16 << 20;
/// What one sort may use beyond its memory.
const BEYOND_BYTES: u64 = 2 << 20;
/// More than a sort may have: if the whole process counted, both would be refused.
const HELD_BYTES: usize = 64 << 20;
const INPUT_BYTES: usize = 40_000_000;

#[test]
fn two_sorts_in_two_threads_leave_the_process_as_it_was() {
    if let Some(place) = std::env::var_os(PLACE) {
        return host_program(Path::new(&place));
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    for name in ["a", "b"] {
        let mut rng = Rng::new(7);
        let input: Vec<u8> = (0..INPUT_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        std::fs::write(place.join(name), input).unwrap();
    }
    let trace = place.join("trace");
    let strace = |program: &Path| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=openat,madvise,prlimit64,setrlimit,rt_sigaction", "-o"]);
        command.arg(&trace).arg(program);
        command
    };
    let own = std::env::current_exe().unwrap();
    let traced = strace(Path::new("true")).status().is_ok_and(|status| status.success());
    let mut command = if traced { strace(&own) } else { Command::new(own) };
    let output = command.args([TEST, "--exact", "--nocapture"]).env(PLACE, &place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if traced {
        let code = std::fs::read_to_string(place.join("code")).unwrap();
        let code: Vec<_> = code.lines().filter_map(addresses).collect();
        assert!(!code.is_empty());
        let trace = std::fs::read_to_string(&trace).unwrap();
        let sorts = trace.lines().skip_while(|call| !call.contains("sorts-begin"));
        let mut calls = sorts.take_while(|call| !call.contains("sorts-end")).peekable();
        assert!(calls.peek().is_some(), "the marks are not in the trace");
        let changes: Vec<_> = calls.filter(|call| changes_process(call, &code)).collect();
        assert!(changes.is_empty(), "{changes:#?}");
    } else {
        skipped("nothing can be traced here");
    }
    std::fs::remove_dir_all(&place).unwrap();
}

/// Whether a line of the trace changes more than the caller's own memory.
fn changes_process(call: &str, code: &[Range<u64>]) -> bool {
    let is_code = |address: u64| code.iter().any(|code| code.contains(&address));
    if let Some((_, advice)) = call.split_once(" madvise(0x") {
        let address = advice.split_once(',').and_then(|(digits, _)| u64::from_str_radix(digits, 16).ok());
        return is_code(address.expect("an address"));
    }
    let only_reads = call.contains(" openat(") || (call.contains(" prlimit64(") && call.contains(", NULL,"));
    !only_reads && [" prlimit64(", " setrlimit(", " rt_sigaction("].iter().any(|name| call.contains(name))
}

/// The addresses of a line of the table of mappings.
fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// Sorts two files in two threads and compares the process before and after.
fn host_program(place: &Path) {
    let held = std::hint::black_box(vec![1u8; HELD_BYTES]);
    // Once a large allocation was freed, the allocator keeps others of its size on the heap.
    drop(std::hint::black_box(vec![1u8; 1 << 20]));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let code: Vec<&str> = maps.lines().filter(|line| line.contains(" r-xp ")).collect();
    std::fs::write(place.join("code"), code.join("\n")).unwrap();
    let (before, peak_before) = (limits_and_signals(), peak_bytes());
    let mark = |name: &str| assert!(std::fs::File::open(place.join(name)).is_err());
    mark("sorts-begin");
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            scope.spawn(move || {
                let output: PathBuf = place.join(format!("{name}.sorted"));
                let task = Task::sort([place.join(name)], output).record(8).memory(MEMORY_BYTES).threads(2);
                let receipt = task.run(&Progress::default()).unwrap();
                assert!(receipt.holds && receipt.io.scratch.written_bytes > 0, "{receipt:?}");
            });
        }
    });
    mark("sorts-end");
    assert_eq!(limits_and_signals(), before);
    let grown = peak_bytes() - peak_before;
    assert!(grown <= 2 * (MEMORY_BYTES + BEYOND_BYTES), "{grown} bytes for two sorts in {MEMORY_BYTES} each");
    if cfg!(target_env = "gnu") {
        assert!(!large_allocations_are_mappings(), "the allocator's parameters were changed");
    }
    drop(held);
}

fn limits_and_signals() -> String {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let masks =
        status.lines().filter(|line| ["SigBlk", "SigIgn", "SigCgt"].contains(&&line[..6.min(line.len())]));
    limits + &masks.collect::<Vec<_>>().join("\n")
}

fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Whether each allocation of 256 KiB is in a mapping of its own, that is, 16 bytes after the start of a page.
fn large_allocations_are_mappings() -> bool {
    let held: Vec<_> = (0..8).map(|_| (vec![1u8; 256 << 10], vec![1u8; 48])).collect();
    held.iter().all(|(large, _)| large.as_ptr() as usize % 4096 == 16)
}

/// Prints that a part of this test cannot run here. `./test` counts the lines of `THALWEG_SKIPPED`.
fn skipped(why: &str) {
    println!("skipped: {why}");
    let Some(file) = std::env::var_os("THALWEG_SKIPPED") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "host_process::{TEST} {why}").unwrap();
}
