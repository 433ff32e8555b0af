//! Runs a sort in a separate process, where the test's own data does not count against the memory limit.
//!
//! The test program starts itself again with one test, the caller of [`child`], which finds the sort in its
//! environment and leaves the receipt, or the error, in a file.

use std::process::{Command, Stdio};
use std::sync::Arc;

use thalweg_api::{Receipt, RecordForm, from_json, to_json};
use thalweg_io::host::{self, Hooks};
use thalweg_io::{FileSystem, Location};
use thalweg_record::{KeyPart, Layout};
use thalweg_sort::{Sort, run};

use super::{Case, Stage, Unwatched, said};

const SORT: &str = "THALWEG_TEST_SORT";
const ANSWER: &str = "THALWEG_TEST_ANSWER";
/// The name of the test that calls [`child`].
const TEST: &str = "a_sort_in_a_process_of_its_own";

/// The result of a sort in a separate process.
pub(crate) struct Alone {
    pub(crate) result: Result<Receipt, String>,
    /// The peak of resident memory, as the kernel counts it.
    pub(crate) peak_bytes: u64,
}

/// Runs the sort in the environment, if there is one.
pub(crate) fn child() {
    let Some(text) = std::env::var_os(SORT) else { return };
    let sort = from_text(text.to_str().expect("the tests' names are text"), &Stage::best_io());
    host::install(Hooks::own_process());
    let answer = match run(&sort, &Unwatched) {
        Ok(receipt) => to_json(&receipt),
        Err(error) => format!("error: {error}"),
    };
    let place = std::env::var_os(ANSWER).expect("it comes with the sort");
    std::fs::write(place, format!("{}\n{answer}", peak_bytes())).expect("the stage can be written");
}

/// Not the parent's count for its child, which starts with the parent's own memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

impl Stage {
    /// Sorts a case in a separate process and compares with the model; also checks memory.
    #[track_caller]
    pub(crate) fn sorts_alone(&self, case: &Case) -> Receipt {
        let alone = self.run_alone(case);
        let receipt = alone.result.unwrap_or_else(|e| panic!("{}: {e}", said(case)));
        case.expected().is(&self.get("out/sorted").expect("there is an output"), &receipt);
        let limit = (case.memory_bytes / 100 * 105).max(case.memory_bytes + (2 << 20));
        // The test harness takes more memory than the command.
        let harness = 2 << 20;
        assert!(alone.peak_bytes <= limit + harness, "{}: {} bytes resident", said(case), alone.peak_bytes);
        receipt
    }

    /// Runs a case in a separate process.
    pub(crate) fn run_alone(&self, case: &Case) -> Alone {
        let sort = self.set(case);
        let names = self.names();
        let place = self.path("answer");
        let own = std::env::current_exe().expect("the test program has a name");
        let mut command = Command::new(own);
        command.args([TEST, "--exact", "--test-threads", "1"]).stdout(Stdio::null());
        let status = command.env(SORT, to_text(&sort)).env(ANSWER, &place).status().expect("it starts");
        assert!(status.success(), "{}: the process ended with {status}", said(case));
        let answer = std::fs::read_to_string(place).expect("the test of that name left an answer");
        let (peak, answer) = answer.split_once('\n').expect("two parts");
        let result = match answer.strip_prefix("error: ") {
            Some(error) => Err(error.to_string()),
            None => Ok(from_json(answer).expect("a receipt")),
        };
        self.is_clean(case, &sort, names, result.as_ref().err().cloned());
        Alone { result, peak_bytes: peak.parse().expect("a number") }
    }
}

fn to_text(sort: &Sort) -> String {
    let inputs: Vec<String> = sort.inputs.iter().map(|input| input.path.display().to_string()).collect();
    let scratch: Vec<String> = sort.scratch.iter().map(|own| own.path.display().to_string()).collect();
    let RecordForm { record, prefixed } = sort.layout.form();
    let key = |k: &KeyPart| format!("{} {} {}", k.offset, k.length, u8::from(k.descending));
    let keys: Vec<String> = sort.keys.iter().map(key).collect();
    let seed = sort.shuffle.map_or(String::new(), |seed| format!(" {seed}"));
    let numbers = format!(
        "{} {} {} {} {}{seed}",
        record.unwrap_or(0),
        sort.memory_bytes,
        sort.lanes,
        u8::from(sort.unique),
        u8::from(prefixed)
    );
    let output = sort.output.path.display().to_string();
    [inputs.join("\n"), output, scratch.join("\n"), keys.join("\n"), numbers].join("\t")
}

fn from_text(text: &str, io: &Arc<dyn FileSystem>) -> Sort {
    let fields: Vec<&str> = text.split('\t').collect();
    let [inputs, output, scratch, keys, numbers] = fields[..] else { panic!("five fields") };
    let at = |path: &str| Location::new(io, path);
    let numbers_of = |text: &str| text.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<u64>>();
    let key = |text: &str| {
        let n = numbers_of(text);
        KeyPart { offset: n[0] as u32, length: n[1] as u32, descending: n[2] == 1 }
    };
    let n = numbers_of(numbers);
    let layout = Layout::of(&RecordForm { record: (n[0] > 0).then_some(n[0] as u32), prefixed: n[4] == 1 });
    Sort {
        inputs: inputs.lines().map(|path| at(path).as_input()).collect(),
        output: at(output),
        keys: keys.lines().map(key).collect(),
        lanes: n[2] as usize,
        shuffle: n.get(5).copied(),
        unique: n[3] == 1,
        ..Sort::new(layout, n[1], scratch.lines().map(at).collect())
    }
}
