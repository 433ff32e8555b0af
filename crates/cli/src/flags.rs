//! The flags of the command: those of the verbs, and its own. Help, manual page, completions and the parser are derived
//! from them, and from nothing else.
//!
//! Invariant: a flag's row holds its name, value, commands, text and setter; [`crate::interpret`] decides what it means
//! together with other flags. Each row has a test case in `flags_test.rs`.

use std::ffi::OsStr;
use std::path::PathBuf;

use thalweg_verbs::At::{Commands, Everywhere};
use thalweg_verbs::Command::*;
use thalweg_verbs::Value::{Any, Dir, OneOf, Switch};
use thalweg_verbs::{Flag, Row, flag, on, values};

use crate::typed::{Document, Help, TypedArgs, When};
use crate::{flags_tables, flags_volume};

/// All flags.
pub(crate) fn flags() -> impl Iterator<Item = &'static Row> {
    thalweg_verbs::rows().map(|flag| &flag.row).chain(own().map(|flag| &flag.row))
}

/// Records a flag.
pub(crate) fn set(row: &Row, args: &mut TypedArgs, value: &OsStr) -> Result<(), String> {
    match thalweg_verbs::named(row.long) {
        Some(flag) => (flag.set)(&mut args.ask, value),
        None => (own().find(|flag| flag.row.long == row.long).expect("a row of these").set)(args, value),
    }
}

/// The flags that no verb has.
fn own() -> impl Iterator<Item = &'static Flag<TypedArgs>> {
    flags_volume::FLAGS.iter().chain(flags_tables::FLAGS).chain(FLAGS)
}

#[rustfmt::skip] // The rows of a table.
const FLAGS: &[Flag<TypedArgs>] = &[
    flag("dir", Dir("DIR"), Commands(&[Bench]), "for the data; for io up to four [default: bench/data]", "\
A directory for the benchmark's data, which is removed afterwards. Without this flag, bench/data below the current \
directory. bench io spreads its chunks over up to four, best on different disks: repeat the flag.",
        |args, value| {
            args.dirs.push(PathBuf::from(value));
            Ok(())
        }),
    flag("runs", Any("N"), Commands(&[Bench, Cluster]), "the number of runs for each median", "\
The number of runs of each median; without this flag 5. For cluster exchange, the number of rounds.",
        |args, value| values::runs(value).map(|runs| args.runs = Some(runs))),
    flag("schedule", OneOf("ORDER", &["together", "same", "shifted", "paced"]), Commands(&[Cluster]),
        "the order in which hosts send to the others", "\
The order in which the hosts of cluster exchange send to each other. together: to all others at once. same: to one \
after the other, every host beginning with the first. shifted: to one after the other, beginning with the host after \
its own. paced: as shifted, but to the next host only when the last one has everything. Without this flag, the best \
order for the size.",
        |args, value| values::schedule(value).map(|schedule| args.schedule = Some(schedule))),
    flag("may", OneOf("WHAT", &["all", "status"]), Commands(&[Cluster]), "what a client may do [default: all]", "\
What the certificate that cluster client makes permits. all: everything, as the owner's. status: to look at status, \
jobs and metrics, over links and over HTTP, and to read volumes and tables, but to change nothing.",
        |args, value| values::may(value).map(|may| args.may = Some(may))),
    flag("listen", Any("ADDRESS:PORT"), Commands(&[Node]), "where to listen [default: as the cluster file says]", "\
Where to listen: an IP address and a port; port 0 takes a free one, which the first line of the output names. Without \
this flag, the address of this host in the cluster file.",
        |args, value| values::address(value).map(|address| args.listen = Some(address))),
    flag("via", Any("HOST"), Commands(&[Exec, Node]), "use the links that this host's node keeps open", "\
Go through the node of this host, which has links with all others open: one connection from here instead of one for \
each host. Without this flag, the host that the variable THALWEG_VIA names; without that, a connection to every host.",
        |args, value| values::text(value).map(|host| args.via = Some(host.to_string()))),
    flag("timeout", Any("TIME"), Commands(&[Exec, Cluster]), "end the command after this time, as in 10s or 5m", "\
End the command on each host after this time: a number with ms, s, m or h; without a unit it is seconds. With cluster \
upgrade: how long to wait for the jobs of a node, and until all is sound again; 10m without this flag.",
        |args, value| values::duration(value).map(|time| args.timeout = Some(time))),
    flag("dead-after", Any("TIME"), Commands(&[Cluster]), "how long a silent host counts as alive [default: 5s]", "\
With cluster init: after this time without a sign of life, a host counts as dead: its open links end, and other hosts \
take over its jobs. A number with ms, s, m or h, from 400ms to 10m; without a unit it is seconds. Every host gives five \
signs of life in this time. A short time suits a fast network and hosts that are not overloaded; a long one suits a \
network that fails now and then. New connections fail after 5 s, whatever this time is.",
        |args, value| values::duration(value).map(|time| args.dead_after = Some(time))),
    flag("env", Any("NAME=VALUE"), Commands(&[Exec]), "add a variable to its environment", "\
Add a variable to the command's environment, which is otherwise that of the node; the flag may be repeated.",
        |args, value| values::variable(value).map(|variable| args.env.push(variable))),
    flag("gather", Switch, Commands(&[Exec]), "print the hosts' outputs at the end, equal ones once", "\
Print each host's output together, in the order of the hosts, when all have ended. Output that is equal on several \
hosts is printed once, behind the list of these hosts, as in 'n[1-6,8]: '. At most the last 16 MiB of each are \
kept; if there was more, a line says so, and the status is 2. With --json, the outputs are in the object, one for \
each host.",
        on!(gather)),
    flag("fanout", Any("N"), Commands(&[Exec]), "run it on at most N hosts at a time", "\
Run the command on at most N hosts at a time; the next begins where one has ended. Without this flag, on all at once. \
Standard input goes to all hosts at once, so such a command has none: write '< /dev/null' if it is not a terminal.",
        |args, value| values::at_once(value).map(|hosts| args.fanout = Some(hosts))),
    flag("json", Switch, Everywhere, "print the receipt, plan or report as one JSON object", "\
Print exactly one JSON object on standard output: the receipt, plan, check or report. If standard output carries the \
records, the object goes to standard error. An error is still one plain line on standard error, with nothing on \
standard output.",
        on!(json)),
    flag("progress", OneOf("WHEN", &["auto", "always", "never"]), Everywhere,
        "show progress on standard error: auto, always or never", "\
Show progress on standard error. auto: a bar, if that is a terminal. always: a bar on a terminal, otherwise a line \
each second. never: nothing.",
        |args, value| {
            let choices = [("auto", When::Auto), ("always", When::Always), ("never", When::Never)];
            values::choice(value, &choices).map(|when| args.progress = when)
        }),
    flag::<TypedArgs>("quiet", Switch, Everywhere, "print errors only", "\
Print errors only: no receipt, no report, no progress. What --json asks for is still printed.",
        on!(quiet),
    )
    .short('q'),
    flag::<TypedArgs>(
        "help",
        Switch,
        Everywhere,
        "explain; -h in short, --help at length",
        "Explain the command, or the program if there is none: -h in short, --help at length.",
        |args, _| {
            args.help = Some(Help::Long);
            Ok(())
        },
    )
    .short('h'),
    flag(
        "all",
        Switch,
        Everywhere,
        "with --help: explain every flag",
        "With --help, or after help COMMAND: explain every flag, also where only the usual ones are shown.",
        on!(all)),
    flag::<TypedArgs>("version", Switch, Everywhere, "print the version", "Print the version.", on!(version))
        .short('V'),
    flag("generate", OneOf("WHAT", &["man", "complete-bash", "complete-zsh", "complete-fish"]), Everywhere,
        "print the manual page or a shell's completions", "\
Print a document that is generated from the same tables as this help: the manual page in roff (man), or completions \
for a shell (complete-bash, complete-zsh, complete-fish).",
        |args, value| {
            let choices = [
                ("man", Document::Man),
                ("complete-bash", Document::Bash),
                ("complete-zsh", Document::Zsh),
                ("complete-fish", Document::Fish),
            ];
            values::choice(value, &choices).map(|document| args.generate = Some(document))
        }),
    flag("join", Dir("DIR"), Commands(&[Node]), "make a cluster with the others of srun or mpirun", "\
With run: makes a cluster together with the other processes of a launcher: srun, mpirun, or any other that sets PMI_RANK and \
PMI_SIZE. DIR is a directory that all of them share, and it becomes the identity for commands on the cluster, as in --cluster \
DIR. It is made if it is not there, must belong to this user alone, and gives the cluster its name; the nodes are n1, n2 and so on. The cluster is there \
when all have come, within 60 s. Each node has the name of its host as its address, and a free port, unless --listen says otherwise. A node that is \
started again replaces the one before it; when none runs any more, the next to come begin a new cluster.",
        |args, value| {
            args.join = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("size", Any("SIZE"), Commands(&[Bench]), "how much data to measure with", "\
The amount of data. The data and the memory of each row scale with it. Without this flag, the size of the published \
figures. Up to 64 MB only tests that the benchmark works.",
        |args, value| values::parsed(value).map(|size| args.size = Some(size))),
    flag("rows", Any("NAME,..."), Commands(&[Bench]), "measure only these rows; a wrong name lists all", "\
Measure only the rows with these names; repeat the flag to add rows. An unknown name prints the list of names.",
        |args, value| values::names(value).map(|names| args.rows.extend(names))),
];
