//! The command line of this program.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value, ValueExt};
use thalweg_base::units::parse_bytes;
use thalweg_measure::{Options, Which};

const HELP: &str = "\
thalweg-bench WHICH [flags]: benchmarks beside rivals and on the hosts of a lab

  sort, io, incore, pump, river   as `thalweg bench`; sort with --rivals beside engines, pump also between hosts
  launch       a null command on the nodes of a lab, beside pdsh, mpirun, srun and others
  cluster      sorts on the nodes of a lab
  all-to-all   every node of a lab sends to every other
  volume       files of a volume, on this machine and on a lab, beside NFS and other file systems
  table        a server of tables beside Redis and etcd, and the experiments of RP* on a lab

  --size SIZE       what everything is scaled by [default: that of the published figures]
  --rows NAME,...   measure only these rows; a wrong name lists all
  --runs N          runs of each median
  --nodes N,...     launch: the numbers of nodes
  --rivals          also measure what bench/rivals has installed
  --suites          volume: run suites for file systems, and measure nothing
  --dir DIR         for the data; for io up to four [default: bench/data]
  --program FILE    the thalweg to measure [default: the one beside this program]
  --json            the report as JSON

Labs need root, and the current directory must be the repository's root.";

/// The names of all benchmarks.
const NAMES: [&str; 10] =
    ["sort", "io", "incore", "pump", "river", "launch", "cluster", "all-to-all", "volume", "table"];

/// What was typed.
pub(crate) struct Typed {
    pub(crate) which: String,
    pub(crate) options: Options,
    pub(crate) nodes: Vec<u32>,
    pub(crate) rivals: bool,
    pub(crate) suites: bool,
    pub(crate) json: bool,
}

impl Typed {
    /// Reads the arguments after the program's name. An error is what to tell the user; help is printed at once.
    pub(crate) fn read(args: impl Iterator<Item = OsString>) -> Result<Typed, String> {
        let options = Options {
            bytes: None,
            runs: None,
            rows: Vec::new(),
            files: Vec::new(),
            dirs: Vec::new(),
            program: PathBuf::new(),
        };
        let mut typed = Typed {
            which: String::new(),
            options,
            nodes: Vec::new(),
            rivals: false,
            suites: false,
            json: false,
        };
        typed.take(&mut lexopt::Parser::from_args(args)).map_err(|why| why.to_string())?;
        if !NAMES.contains(&typed.which.as_str()) {
            let known = NAMES.join(", ");
            return Err(format!("unknown benchmark '{}'; the benchmarks are {known}", typed.which));
        }
        if typed.suites && typed.which != "volume" {
            return Err("--suites is for volume".into());
        }
        if !typed.nodes.is_empty() && typed.which != "launch" {
            return Err("--nodes is for launch".into());
        }
        if typed.options.program.as_os_str().is_empty() {
            typed.options.program = beside()?;
        }
        Ok(typed)
    }

    fn take(&mut self, parser: &mut lexopt::Parser) -> Result<(), lexopt::Error> {
        while let Some(arg) = parser.next()? {
            match arg {
                Short('h') | Long("help") => {
                    println!("{HELP}");
                    std::process::exit(0);
                }
                Long("size") => self.options.bytes = Some(parser.value()?.parse_with(parse_bytes)?),
                Long("runs") => self.options.runs = Some(parser.value()?.parse_with(at_least_one)?),
                Long("rows") => self.options.rows.extend(listed(parser.value()?)?),
                Long("nodes") => {
                    for count in listed(parser.value()?)? {
                        self.nodes.push(OsString::from(count).parse_with(at_least_one)? as u32);
                    }
                }
                Long("rivals") => self.rivals = true,
                Long("suites") => self.suites = true,
                Long("dir") => self.options.dirs.push(parser.value()?.into()),
                Long("program") => {
                    self.options.program = std::path::absolute(parser.value()?).map_err(|e| e.to_string())?;
                }
                Long("json") => self.json = true,
                Value(which) if self.which.is_empty() => self.which = which.string()?,
                Value(file) if self.which == "sort" => self.options.files.push(file.into()),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(())
    }
}

fn listed(value: OsString) -> Result<Vec<String>, lexopt::Error> {
    Ok(value.string()?.split(',').map(String::from).collect())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "give a whole number, 1 or more".to_string())
}

/// The `thalweg` in the directory of this program.
fn beside() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
    let program = here.with_file_name("thalweg");
    if program.is_file() {
        return Ok(program);
    }
    Err(format!(
        "there is no {}; build it (cargo build --release --package thalweg-cli), or give --program FILE",
        program.display()
    ))
}

/// The benchmark of users with this name, which [`Typed::read`] has checked.
pub(crate) fn of_users(name: &str) -> Which {
    Which::named(name).expect("the names were checked")
}
