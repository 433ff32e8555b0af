//! The test programs: built once, then run side by side, the slowest first.
//!
//! Model: cargo builds them and prints their paths. Those that compute run beside those that wait, in [`LANES`]; those that
//! measure time run afterwards, one by one. The output of each goes to a file below [`LOGS`]. It is shown only
//! if a test fails: at once, and again at the end. Tests that failed next to another program run once more, alone.
//! How long each took decides the order of the next run.
//! Invariant: every program that was built is counted. A failed test counts as passed only if it passes alone, and for
//! the first time: it is then listed as flaky and entered in [`FLAKY`], with the load and the seed, and while it is there
//! it has failed if it does so again. Whoever explains and mends it takes the line out.
//! Non-goals: examples in documentation, which cargo builds and runs itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Instant;

/// How many tests passed, failed, and were skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The results of all programs.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Programs with failed tests, and their output.
    pub(crate) failed: Vec<(String, String)>,
    /// Tests that failed next to another program and passed alone.
    pub(crate) flaky: Vec<String>,
}

/// The directory of the programs' output, one file for each.
const LOGS: &str = "target/tests";
/// The seconds that each program took in the last run, a line for each: seconds, then the name.
const SECONDS: &str = "target/tests-seconds";
/// The tests that have failed beside others and passed alone, a line for each.
const FLAKY: &str = "crates/xtask/flaky.txt";
/// What runs at the same time: each lane takes programs of its first kind, and those of its second when there are no more.
const LANES: &[&[Kind]] = &[&[Kind::Computes, Kind::Waits], &[Kind::Waits, Kind::Computes], &[Kind::Waits]];
/// The lane of what runs afterwards.
const ALONE: &[&[Kind]] = &[&[Kind::Measures]];
/// The time limit of a program, after which it is considered to hang. That of the Python package builds it with pip,
/// which takes minutes the first time. A program that hangs is killed and counts as failed; its last lines
/// show the test.
const SECONDS_MAX: u32 = 1800;
/// The exit status of `timeout` when it kills a program.
const TIMED_OUT: i32 = 124;

/// The beginning of the line with the seconds of the processors.
const CPU_SECONDS: &str = "seconds of the processors: ";

/// What a program spends its time with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It uses a core or two.
    Computes,
    /// It starts processes, and mostly waits for them.
    Waits,
    /// It expects something within a time, or measures.
    Measures,
}

/// The crates whose tests start processes.
const STARTS_PROCESSES: &[&str] = &["cli", "py", "mount", "thalweg", "bench"];
/// Programs of these crates that compute all the same.
const COMPUTES: &[&str] = &["cli outside", "cli sort_outside", "cli pump_outside", "cli described"];
/// Programs that measure.
const MEASURES: &[&str] = &["cli lab", "cli crowd", "cli bench", "bench labs"];

/// The slowest programs, in order, for a first run.
const SLOWEST: &[&str] = &[
    "py python",
    "cli sort_jobs",
    "volume unit tests",
    "cli pump_outside",
    "cli sort_cluster",
    "table unit tests",
    "cli outside",
    "cli pump_ssh",
    "cli pump_far",
];

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// The crate and the test, as in `cli nodes`.
    name: String,
    path: PathBuf,
    /// The directory where cargo runs it, that of its crate.
    directory: PathBuf,
}

impl Program {
    fn kind(&self) -> Kind {
        let name = self.name.as_str();
        let package = name.split(' ').next().unwrap_or_default();
        match () {
            () if MEASURES.contains(&name) => Kind::Measures,
            () if STARTS_PROCESSES.contains(&package) && !COMPUTES.contains(&name) => Kind::Waits,
            () => Kind::Computes,
        }
    }
}

/// Builds all programs and runs them. Writes a line for each to `shown`, and the output of failures.
pub(crate) fn run(root: &Path, shown: &mut impl Write) -> Outcome {
    let runner = Runner {
        logs: root.join(LOGS),
        times: root.join(SECONDS),
        flaky: root.join(FLAKY),
        seconds_max: SECONDS_MAX,
    };
    let ran = build(root).and_then(|programs| runner.run_all(programs, shown));
    ran.unwrap_or_else(|error| Outcome {
        tally: Tally { failed: 1, ..Tally::default() },
        failed: vec![("tests".to_string(), format!("{error}\n"))],
        flaky: Vec::new(),
    })
}

/// Builds the programs. If that fails, cargo has printed why.
fn build(root: &Path) -> io::Result<Vec<Program>> {
    let mut cargo = crate::command(root, "cargo");
    cargo.args(["test", "--workspace", "--no-run", "--quiet"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other("`cargo test --workspace` does not build"));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(program_of).collect())
}

/// The test program in a message of cargo, if there is one. Each message is a line of JSON.
fn program_of(message: &str) -> Option<Program> {
    // The end of `profile` in the message; commands and examples are built without tests.
    if !message.contains(r#""test":true},"features":"#) {
        return None;
    }
    let path = PathBuf::from(text_of(message, "executable")?);
    let directory = Path::new(text_of(message, "manifest_path")?).parent()?.to_path_buf();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let source = text_of(message, "src_path")?;
    let test = if source.contains("/tests/") { text_of(message, "name")? } else { "unit tests" };
    Some(Program { name: format!("{package} {test}"), path, directory })
}

/// The first string with this name in a message of cargo.
pub(crate) fn text_of<'m>(message: &'m str, name: &str) -> Option<&'m str> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    Some(rest.split_once('"')?.0)
}

/// How programs are run.
struct Runner {
    /// The directory for the output.
    logs: PathBuf,
    /// The file with how long programs took.
    times: PathBuf,
    /// The file with tests that failed beside others and passed alone.
    flaky: PathBuf,
    seconds_max: u32,
}

/// One run of a program.
struct Ran {
    tally: Tally,
    seconds: f64,
    /// The seconds of the processors that it used, with the processes that it started and waited for.
    cpu_seconds: f64,
    /// The load of the machine at its end.
    load: String,
    output: String,
    /// Tests that could not run here, with all reasons of each.
    skipped: BTreeMap<String, String>,
}

impl Runner {
    /// Runs the programs, the slowest first, and then the failed tests once more.
    fn run_all(&self, mut programs: Vec<Program>, shown: &mut impl Write) -> io::Result<Outcome> {
        let times = fs::read_to_string(&self.times).unwrap_or_default();
        let known = seconds_of(&times);
        // Without a run before, those that are said to be slow come first, and longer than any took.
        let slow = |name: &str| SLOWEST.iter().position(|slow| *slow == name).map(|at| 1e6 - at as f64);
        let expected =
            |name: &str| known.get(name).copied().unwrap_or_else(|| slow(name).unwrap_or_default());
        programs.sort_by(|a, b| expected(&b.name).total_cmp(&expected(&a.name)));
        let _ = fs::remove_dir_all(&self.logs);
        fs::create_dir_all(&self.logs)?;
        let (mut outcome, mut again) = (Outcome::default(), Vec::new());
        let left = Mutex::new(programs);
        let mut times = String::new();
        for lanes in [LANES, ALONE] {
            self.run_lanes(lanes, &left, |program, ran| {
                times += &format!("{:.1} {}\n", ran.seconds, program.name);
                outcome.tally += ran.tally;
                ran.show(&program.name, shown)?;
                if ran.tally.failed > 0 {
                    again.push((program, ran));
                }
                Ok(())
            })?;
        }
        fs::write(&self.times, times)?;
        for (program, first) in again {
            let mut flaky = self.run_alone(&program, &first);
            flaky.retain(|test| self.is_first_time(test, &first));
            let count = flaky.len() as u64;
            outcome.tally.failed -= count;
            outcome.tally.passed += count;
            outcome.flaky.extend(flaky);
            if first.tally.failed > count {
                outcome.failed.push((program.name, first.output));
            }
        }
        Ok(outcome)
    }

    /// Runs what is left of the kinds of the lanes, each lane one program at a time, and hands over each that ended.
    fn run_lanes(
        &self,
        lanes: &[&[Kind]],
        left: &Mutex<Vec<Program>>,
        mut ended: impl FnMut(Program, Ran) -> io::Result<()>,
    ) -> io::Result<()> {
        let next = |kinds: &[Kind]| {
            let mut left = left.lock().expect("no worker panics");
            let of = |kind: &Kind| left.iter().position(|program| program.kind() == *kind);
            kinds.iter().find_map(of).map(|at| left.remove(at))
        };
        std::thread::scope(|scope| {
            let (sender, ran) = mpsc::channel();
            for kinds in lanes {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    while let Some(program) = next(kinds) {
                        let ran = self.run(&program, &[]);
                        sender.send((program, ran)).expect("all that ends is waited for");
                    }
                });
            }
            drop(sender);
            ran.into_iter().try_for_each(|(program, ran)| ended(program, ran))
        })
    }

    /// Runs the failed tests once more, and returns those that pass now. A program that did not finish names no tests.
    fn run_alone(&self, program: &Program, first: &Ran) -> Vec<String> {
        let failed = failed_tests(&first.output);
        if failed.is_empty() {
            return Vec::new();
        }
        let second = self.run(program, &[&["--exact"], &failed[..]].concat());
        let again = failed_tests(&second.output);
        if again.len() as u64 != second.tally.failed {
            return Vec::new();
        }
        let passed = failed.into_iter().filter(|test| !again.contains(test));
        passed.map(|test| format!("{} {test}", program.name)).collect()
    }

    /// Enters a test that failed beside others and passed alone, unless it is there already.
    fn is_first_time(&self, test: &str, failed: &Ran) -> bool {
        let known = fs::read_to_string(&self.flaky).unwrap_or_default();
        if known.lines().any(|line| line.split(" | ").next() == Some(test)) {
            return false;
        }
        let seed = failed.output.lines().find(|line| line.contains("seed")).unwrap_or("no seed");
        let entry = format!("{test} | load {} | {}\n", failed.load, seed.trim());
        // Without the file it is only shown.
        let _ = fs::write(&self.flaky, known + &entry);
        true
    }

    /// Runs a program with these arguments to its end.
    fn run(&self, program: &Program, args: &[&str]) -> Ran {
        let start = Instant::now();
        let end = if args.is_empty() { "log" } else { "alone.log" };
        let log = self.logs.join(format!("{}.{end}", program.name.replace(' ', "-")));
        let skipped = log.with_extension("skipped");
        let ended = self.run_to_log(program, args, &log, &skipped);
        let mut output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let mut tally = Tally::default();
        let results: Vec<Tally> = output.lines().filter_map(result_of).collect();
        results.iter().for_each(|one| tally += *one);
        let why = match ended {
            Ok(Some(0)) if !results.is_empty() => None,
            Ok(Some(_)) if tally.failed > 0 => None,
            Ok(Some(TIMED_OUT)) => Some(format!("was ended after {} s", self.seconds_max)),
            Ok(status) => Some(format!("did not finish: exit status {status:?}")),
            Err(error) => Some(format!("cannot be run: {error}")),
        };
        if let Some(why) = why {
            output += &format!("{} {why}\n", program.name);
            tally.failed += 1;
        }
        let cpu_seconds = output.lines().rev().find_map(cpu_seconds_of).unwrap_or_default();
        let skipped = reasons(&fs::read_to_string(skipped).unwrap_or_default());
        // The program reports a test that could not run as passed, so it is subtracted.
        let count = skipped.len() as u64;
        tally.skipped += count;
        tally.passed = tally.passed.saturating_sub(count);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default().to_string();
        Ran { tally, seconds: start.elapsed().as_secs_f64(), cpu_seconds, load, output, skipped }
    }

    /// Runs a program with its output in a file. Returns its exit status; `None` if a signal ended it.
    fn run_to_log(
        &self,
        program: &Program,
        args: &[&str],
        log: &Path,
        skipped: &Path,
    ) -> io::Result<Option<i32>> {
        let out = File::create(log)?;
        let mut command = Command::new("bash");
        command.args(["-c", &format!("TIMEFORMAT='{CPU_SECONDS}%U %S'; time \"$@\""), "bash"]);
        command.args(["timeout", "--foreground", &self.seconds_max.to_string()]);
        command.arg(&program.path).args(args);
        command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
        command.env("THALWEG_SKIPPED", skipped).stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        Ok(command.status()?.code())
    }
}

impl Ran {
    /// Writes a line with the result and a line for each skipped test, and the output if a test failed.
    fn show(&self, name: &str, shown: &mut impl Write) -> io::Result<()> {
        let Tally { passed, failed, .. } = self.tally;
        if failed > 0 {
            write!(shown, "{}", self.output)?;
        }
        let (seconds, cpu) = (self.seconds, self.cpu_seconds);
        writeln!(shown, "{name}: {passed} passed, {failed} failed, {seconds:.1} s, {cpu:.1} CPU-s")?;
        for (test, why) in &self.skipped {
            writeln!(shown, "skipped {test}: {why}")?;
        }
        Ok(())
    }
}

/// The counts of a `test result:` line.
pub(crate) fn result_of(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("test result: ")?;
    let count = |what: &str| {
        let (before, _) = rest.split_once(what)?;
        before.split_whitespace().next_back()?.parse().ok()
    };
    Some(Tally { passed: count(" passed;")?, failed: count(" failed;")?, skipped: count(" ignored")? })
}

/// The seconds of the processors in such a line: those of programs and those of the system.
fn cpu_seconds_of(line: &str) -> Option<f64> {
    line.strip_prefix(CPU_SECONDS)?.split(' ').map(|part| part.parse::<f64>().ok()).sum()
}

/// The failed tests that a program lists in its output, or each run that it consists of.
fn failed_tests(output: &str) -> Vec<&str> {
    let lists = output.split("\nfailures:\n").skip(1);
    lists.flat_map(|list| list.lines().map_while(|line| line.strip_prefix("    "))).collect()
}

/// How long programs took, from the lines of a file: seconds, then the name.
fn seconds_of(lines: &str) -> BTreeMap<&str, f64> {
    let of = |line| -> Option<(&str, f64)> {
        let (seconds, name) = str::split_once(line, ' ')?;
        Some((name, seconds.parse().ok()?))
    };
    lines.lines().filter_map(of).collect()
}

/// The tests that could not run, with all reasons of each.
fn reasons(lines: &str) -> BTreeMap<String, String> {
    let mut reasons: BTreeMap<String, String> = BTreeMap::new();
    for (test, why) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let said = reasons.entry(test.to_string()).or_default();
        if !said.contains(why) {
            said.push_str(if said.is_empty() { "" } else { "; " });
            said.push_str(why);
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with scripts that imitate the output of test programs.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("thalweg-programs-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Place(path)
        }

        fn program(&self, name: &str, script: &str) -> Program {
            use std::os::unix::fs::OpenOptionsExt;
            let path = self.0.join(name);
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&path).unwrap();
            file.write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
            Program { name: name.into(), path, directory: self.0.clone() }
        }

        fn run(&self, programs: Vec<Program>, seconds_max: u32) -> (Outcome, String) {
            let mut shown = Vec::new();
            let in_place = |name: &str| self.0.join(name);
            let (logs, times, flaky) = (in_place("logs"), in_place("times"), in_place("flaky"));
            let runner = Runner { logs, times, flaky, seconds_max };
            let outcome = runner.run_all(programs, &mut shown).unwrap();
            (outcome, String::from_utf8(shown).unwrap())
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PASSES: &str = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'";

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally { passed, failed, skipped }
    }

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 34 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(result_of(line), Some(tally(34, 2, 0)));
        assert_eq!(result_of("running 3 tests"), None);
    }

    #[test]
    fn programs_of_tests_are_found_in_what_cargo_says() {
        let message = |source: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/cli/Cargo.toml","target":{{"name":"nodes","src_path":"/r/crates/cli/{source}","test":true}},"profile":{{"test":{is_test}}},"features":[],"executable":"/r/target/nodes-1"}}"#
            )
        };
        let program = |name: &str| Program {
            name: name.into(),
            path: "/r/target/nodes-1".into(),
            directory: "/r/crates/cli".into(),
        };
        assert_eq!(program_of(&message("tests/nodes.rs", true)), Some(program("cli nodes")));
        assert_eq!(program_of(&message("src/lib.rs", true)), Some(program("cli unit tests")));
        assert_eq!(program_of(&message("src/main.rs", false)), None);
        assert_eq!(program_of(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn programs_run_at_the_same_time() {
        let place = Place::new("at-once");
        // Each end of the pipe opens only once the other one does.
        let meets = |name, word| {
            place.program(name, &format!("mkfifo pipe 2>/dev/null; {word}pipe || exit 1; {PASSES}"))
        };
        let (outcome, shown) = place.run(vec![meets("a", "echo >"), meets("b", "read line <")], 10);
        assert_eq!(outcome.tally, tally(6, 0, 2), "{shown}");
        assert!(outcome.failed.is_empty() && shown.contains("a: 3 passed, 0 failed"), "{shown}");
    }

    #[test]
    fn failed_tests_are_those_of_every_list() {
        let of = |name| format!("\nfailures:\n    {name}\n\ntest result: FAILED. 0 passed; 1 failed\n");
        let output =
            format!("\nfailures:\n\n---- a stdout ----\n\n    indented\n{}{}", of("a::b"), of("c d"));
        assert_eq!(failed_tests(&output), ["a::b", "c d"]);
        assert!(failed_tests("    no list\n").is_empty());
    }

    #[test]
    fn the_slowest_begin_and_those_that_measure_are_alone() {
        let place = Place::new("order");
        let named = |name: &str, script: &str| Program {
            name: name.into(),
            ..place.program(&name.replace(' ', "-"), &format!("{script}; {PASSES}"))
        };
        // It would see what runs beside it.
        let busy = |name| named(name, "mkdir busy-$$; sleep 0.2; rmdir busy-$$");
        let alone = || named("cli lab", "sleep 0.1; ! ls -d busy-* || exit 1");
        let (outcome, shown) = place.run(vec![alone(), busy("sort a"), busy("cli b")], 10);
        assert!(outcome.failed.is_empty(), "{shown}");
        assert!(shown.ends_with("cli lab: 3 passed, 0 failed, 0.1 s, 0.0 CPU-s\n"), "{shown}");
        fs::write(place.0.join("times"), "1.0 sort a\n3.5 sort c\n2.0 sort b\n").unwrap();
        let writes = |name: &str| named(name, "echo $0 >> began; sleep 0.3");
        let programs = ["sort d", "sort b", "sort c"].map(writes);
        place.run(programs.to_vec(), 10);
        let began = fs::read_to_string(place.0.join("began")).unwrap();
        assert!(began.lines().next_back().unwrap().ends_with("sort-d"), "{began}");
        let times = fs::read_to_string(place.0.join("times")).unwrap();
        assert_eq!(times.lines().count(), 3, "{times}");
    }

    #[test]
    fn what_failed_beside_another_and_passes_alone_is_flaky() {
        let place = Place::new("flaky");
        let first = "echo 'test result: FAILED. 5 passed; 2 failed; 0 ignored'; exit 101";
        let script = format!(
            "[ $# = 0 ] || {{ printf '\\nfailures:\\n    b::bad\\n\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\\n'; exit 101; }}\n\
             printf 'why it failed: seed 7\\n\\nfailures:\\n    a::shaky\\n    b::bad\\n\\n'\n{first}"
        );
        let programs = vec![place.program("p", &script), place.program("q", PASSES)];
        let (outcome, shown) = place.run(programs.clone(), 30);
        assert_eq!(outcome.tally, tally(9, 1, 1), "{shown}");
        assert_eq!(outcome.flaky, ["p a::shaky"]);
        assert_eq!(outcome.failed.len(), 1);
        assert!(shown.contains("why it failed") && outcome.failed[0].1.contains("why it failed"), "{shown}");
        let log = fs::read_to_string(place.0.join("flaky")).unwrap();
        assert!(
            log.starts_with("p a::shaky | load ") && log.ends_with(" | why it failed: seed 7\n"),
            "{log}"
        );
        let (outcome, shown) = place.run(programs, 30);
        assert_eq!(outcome.tally, tally(8, 2, 1), "the second time is a failure: {shown}");
        assert!(outcome.flaky.is_empty());
        assert_eq!(fs::read_to_string(place.0.join("flaky")).unwrap(), log);
    }

    #[test]
    fn a_program_that_does_not_finish_has_failed() {
        let place = Place::new("unfinished");
        let one = |script: &str| {
            let program = place.program("p", script);
            let (outcome, shown) = place.run(vec![program.clone()], 1);
            fs::remove_file(program.path).unwrap();
            assert_eq!((outcome.tally.failed, outcome.failed.len()), (1, 1), "{script}: {shown}");
            assert!(outcome.flaky.is_empty());
            shown
        };
        assert!(one("exec sleep 60").contains("p was ended after 1 s"));
        assert!(one("kill -9 $$").contains("p did not finish"));
        assert!(one("exit 0").contains("p did not finish"));
        assert!(one(&format!("{PASSES}; exit 3")).contains("p did not finish: exit status Some(3)"));
    }

    #[test]
    fn a_test_that_could_not_run_is_counted_once_with_its_reasons() {
        let place = Place::new("skipped");
        let script =
            format!("printf 'a::b no root\\na::b no root\\na::b no sshd\\n' >$THALWEG_SKIPPED; {PASSES}");
        let (outcome, shown) = place.run(vec![place.program("p", &script)], 30);
        assert_eq!(outcome.tally, tally(2, 0, 2));
        assert!(shown.ends_with("skipped a::b: no root; no sshd\n"), "{shown}");
    }
}
