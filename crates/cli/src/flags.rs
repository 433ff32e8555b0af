//! The table of flags. Help, manual page, completions and the parser are derived from it, and from nothing else.
//!
//! Invariant: a flag's row holds its name, value, commands, text and setter; [`crate::interpret`] decides what it means
//! together with other flags. Each row has a test case in `flags_test.rs`.
//! Non-goal: opposites of other flags, hidden flags, abbreviations.

use std::path::PathBuf;

use crate::commands::Command::*;
pub(crate) use crate::flag::{At, Flag, Value};
use crate::flag::{
    BENCHES, CHECKS, EXECUTES, GENERATES, JOINS, KEYS, ON_NODES, PARTS, PUMPS, RECORD_LENGTHS, RECORDS,
    SORTS, SPILLS, WRITES,
};
use crate::typed::{Document, Help, When};
use crate::{
    flags_bench, flags_cluster_tables, flags_nodes, flags_pump, flags_records, flags_table, flags_volume,
    values,
};

/// The flags, grouped by topic.
pub(crate) const FLAGS: &[Flag] = &[
    Flag {
        long: "output",
        short: Some('o'),
        value: Value::File("OUTPUT"),
        at: WRITES,
        about: "where the records go; names of parts have {} in them",
        doc: "\
Where the records go; '-' is standard output, and so is no --output at all. May be one of the inputs. A file appears \
under its name only when it is complete and durable.

With partition: the names of the parts, with {} once, where the number goes, as in 'DIR/part-{}'. Numbers begin at 0 \
and have as many digits as the last one.",
        set: |args, value| match args.output.replace(value.to_owned()) {
            None => Ok(()),
            Some(first) => Err(format!("there is one output, and it is '{}' already", first.to_string_lossy())),
        },
    },
    Flag {
        long: "record",
        short: None,
        value: Value::Any("BYTES"),
        at: RECORD_LENGTHS,
        about: "records of this many bytes instead of lines",
        doc: "\
Every record has this many bytes, and the input holds a whole number of records. Without this flag, records are lines: \
the newline ends a record and is not part of it.

With volume: files hold records of this many bytes, and no record crosses the end of a stripe.",
        set: |args, value| values::record_bytes(value).map(|bytes| args.record_bytes = Some(bytes)),
    },
    Flag {
        long: "prefixed",
        short: None,
        value: Value::None,
        at: RECORDS,
        about: "records that begin with their length, instead of lines",
        doc: "\
Every record begins with its length: four bytes, little-endian, which do not count themselves. Such records may hold \
any bytes and have any length below 4 GiB. Key offsets count from the first byte after the length. The start of a \
record is known only from the records before it, so a file is read from its start, on a cluster by one node.",
        set: |args, _| {
            args.prefixed = true;
            Ok(())
        },
    },
    flags_records::HEADER,
    Flag {
        long: "by",
        short: None,
        value: Value::Any("OFFSET:LENGTH[:desc],..."),
        at: KEYS,
        about: "the key: bytes of the record, compared in turn",
        doc: "\
The parts of the key. Each is LENGTH bytes of the record from OFFSET on (the first byte is 0), compared as bytes; with \
:desc in descending order, otherwise (or with :asc) in ascending order. Parts compare in turn: the second decides if \
the first are equal. The flag may be repeated to add parts. Without it, the key is the whole record.

If a line is too short for a part, its existing bytes are compared, so --by 0:4294967295:desc sorts whole lines in \
descending order.",
        set: |args, value| values::keys(value).map(|parts| args.keys.extend(parts)),
    },
    Flag {
        long: "datamation",
        short: None,
        value: Value::None,
        at: KEYS,
        about: "the Sort Benchmark's records: --record 100 --by 0:10",
        doc: "The records of the Sort Benchmark (Datamation, 1985). The same as --record 100 --by 0:10.",
        set: |args, _| {
            args.datamation = true;
            Ok(())
        },
    },
    Flag {
        long: "memory",
        short: None,
        value: Value::Any("SIZE"),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Table, Node]),
        about: "memory of the process [default: half of what is free]",
        doc: "\
Memory for the whole process, as the kernel counts it: a promise, not a hint. The peak stays below 1.05 times SIZE or \
SIZE + 2 MiB, whichever is larger. A sort takes 16 MiB or more. That is enough for any input of up to 300 times SIZE \
whose records have at most a tenth of SIZE; a smaller SIZE may mean more passes. If a sort needs more, an error says \
at once how much. A percentage is relative to the available memory; the default is half of it. With table and node \
run: the memory for records of tables and their index.",
        set: |args, value| values::parsed(value).map(|size| args.memory = Some(size)),
    },
    Flag {
        long: "scratch",
        short: None,
        value: Value::Dir("DIR"),
        at: At::Commands(&[Sort, Shuffle, Join, Plan, Doctor, Table]),
        about: "for what does not fit in memory; repeat for more disks",
        doc: "\
A directory for data that does not fit in memory. Repeat the flag to use up to 256 at once, preferably on different \
disks. Without it, a sort of files uses the disk space of the output itself, and needs only about a tenth more; \
nothing has to be freed at the end. For other input the default is the directory of the output, or, if the output is a \
stream, the directory for temporary files. With doctor: a directory to examine.",
        set: |args, value| {
            args.scratch.push(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        long: "scratch-limit",
        short: None,
        value: Value::Any("SIZE"),
        at: SPILLS,
        about: "the most scratch space to use, all directories together",
        doc: "\
The most scratch space to use, all scratch directories together. A sort that would need more is refused before it \
starts. A percentage refers to the available space.",
        set: |args, value| values::parsed(value).map(|size| args.scratch_limit = Some(size)),
    },
    Flag {
        long: "threads",
        short: None,
        value: Value::Any("N"),
        at: WRITES,
        about: "threads that do the work [default: one for each core]",
        doc: "\
The number of threads that work in parallel. Without this flag, one for each core. With partition, N threads read and \
N others write; fewer, if --memory does not hold the batches of so many.",
        set: |args, value| values::threads(value).map(|threads| args.threads = Some(threads)),
    },
    Flag {
        long: "unique",
        short: None,
        value: Value::None,
        at: At::Commands(&[Sort, Merge, Plan]),
        about: "of records with equal keys, keep only the first",
        doc: "\
Keep only the first of records with equal keys. The receipt also has the count and checksum of the dropped records: \
out plus dropped must equal in.",
        set: |args, _| {
            args.unique = true;
            Ok(())
        },
    },
    Flag {
        long: "resume",
        short: None,
        value: Value::None,
        at: At::Commands(&[Sort, Plan, Pump]),
        about: "continue from what an earlier run left",
        doc: "\
Continue from what an earlier run of the same command left: its scratch files and its partial output. Anything that is \
damaged or belongs to another input is not used: that work is done again, and a line on standard error says so. \
Without this flag, a run deletes what an earlier one left.

Give --memory in bytes, as in 1GiB, in both runs: a percentage, or the default, may be another size the next time, and \
only a run with the same size can continue.

With pump: continue from the hidden files beside DEST without rereading the data that was durable, and skip files at \
DEST that have the size and time of those at SOURCE. A source that has changed since then is copied from the \
beginning.",
        set: |args, _| {
            args.resume = true;
            Ok(())
        },
    },
    Flag {
        long: "no-proof",
        short: None,
        value: Value::None,
        at: SORTS,
        about: "for benchmarks: take no checksums of the records",
        doc: "\
For benchmarks: leave out the proof, to see what it costs. The receipt then says how many records went in and came \
out, but not whether they are the same.",
        set: |args, _| {
            args.no_proof = true;
            Ok(())
        },
    },
    Flag {
        long: "io",
        short: None,
        value: Value::OneOf("WHICH", &["auto", "uring", "threads"]),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Gen, Check, Pump]),
        about: "how to read and write: auto, uring or threads",
        doc: "\
How to read and write. uring: io_uring, or an error if this machine refuses it. threads: threads with blocking calls. \
auto: io_uring where it is allowed, otherwise threads; the receipt says which.",
        set: |args, value| {
            use thalweg::IoChoice::*;
            let choices = [("auto", Auto), ("uring", Uring), ("threads", Threads)];
            values::choice(value, &choices).map(|io| args.io = io)
        },
    },
    Flag {
        long: "pick",
        short: None,
        value: Value::OneOf("HOW", &["range", "hash", "robin"]),
        at: PARTS,
        about: "by range, hash or robin [default: range]",
        doc: "\
How the part of a record is chosen. range: by ranges of the key, which a sample of the input makes equal in size; keys \
of part 0 come before those of part 1. hash: by a hash of the key, so that equal keys go to the same part. robin: in \
turn, whatever the key; for lines, and for records that do not fill pages evenly, this starts again with each page, \
and the size of pages depends on --memory.",
        set: |args, value| {
            use thalweg::PartitionPick::*;
            let choices = [("range", Range), ("hash", Hash), ("robin", Robin)];
            values::choice(value, &choices).map(|pick| args.pick = pick)
        },
    },
    Flag {
        long: "parts",
        short: None,
        value: Value::Any("N"),
        at: PARTS,
        about: "how many parts",
        doc: "The number of parts, at most 4096. Each is a file, even if no record goes to it.",
        set: |args, value| values::parts(value).map(|parts| args.parts = Some(parts)),
    },
    Flag {
        long: "split-keys",
        short: None,
        value: Value::None,
        at: PARTS,
        about: "records with equal keys may lie in several parts",
        doc: "\
With --pick range: records with equal keys may go to neighbouring parts, according to their place in the input, so \
that parts have equal sizes even if half of all records have the same key. Without this flag equal keys stay together.",
        set: |args, _| {
            args.split_keys = true;
            Ok(())
        },
    },
    Flag {
        long: "seed",
        short: None,
        value: Value::Any("N"),
        at: At::Commands(&[Shuffle]),
        about: "the seed of the random order: any number of 64 bits",
        doc: "\
Selects the random order: a number of up to 64 bits. The same number gives the same order.",
        set: |args, value| values::seed(value).map(|seed| args.seed = Some(seed)),
    },
    Flag {
        long: "type",
        short: None,
        value: Value::OneOf("WHICH", &["inner", "left", "anti"]),
        at: JOINS,
        about: "which records: inner, left or anti [default: inner]",
        doc: "\
Which records come out. inner: for each key, each left record with each right one. left: these, and left records \
without a match. anti: only left records without a match, unchanged.",
        set: |args, value| {
            use thalweg::JoinKind::*;
            let choices = [("inner", Inner), ("left", Left), ("anti", Anti)];
            values::choice(value, &choices).map(|kind| args.kind = kind)
        },
    },
    Flag {
        long: "right-record",
        short: None,
        value: Value::Any("BYTES"),
        at: JOINS,
        about: "bytes of a record of RIGHT [default: as --record]",
        doc: "The bytes of a record of RIGHT, if they differ from those of LEFT.",
        set: |args, value| values::record_bytes(value).map(|bytes| args.right_record_bytes = Some(bytes)),
    },
    Flag {
        long: "right-by",
        short: None,
        value: Value::Any("OFFSET:LENGTH[:desc],..."),
        at: JOINS,
        about: "the key of RIGHT [default: as --by]",
        doc: "\
The parts of the key of RIGHT, if it has another place than in LEFT. They have the same lengths as those of --by, in \
the same order.",
        set: |args, value| values::keys(value).map(|parts| args.right_keys.extend(parts)),
    },
    Flag {
        long: "between",
        short: None,
        value: Value::Any("TEXT"),
        at: JOINS,
        about: "what separates the two lines of a match [default: a tab]",
        doc: "The text between the left and the right line of a match. Without this flag, a tab.",
        set: |args, value| values::between(value).map(|text| args.between = Some(text)),
    },
    Flag {
        long: "ascii",
        short: None,
        value: Value::None,
        at: GENERATES,
        about: "printable records instead of binary ones",
        doc: "Printable records instead of binary ones: each is a line of 98 characters that ends in CR LF.",
        set: |args, _| {
            args.ascii = true;
            Ok(())
        },
    },
    Flag {
        long: "skewed",
        short: None,
        value: Value::None,
        at: GENERATES,
        about: "skewed keys instead of uniform ones",
        doc: "Skewed keys: many begin with the same few bytes. Without this flag, keys are uniform.",
        set: |args, _| {
            args.skewed = true;
            Ok(())
        },
    },
    Flag {
        long: "start",
        short: None,
        value: Value::Any("N"),
        at: GENERATES,
        about: "number of the first record [default: 0]",
        doc: "\
Number of the first record, up to 128 bits, written like COUNT. Parts that are generated separately, each from where \
the one before ended, are together the same as one run.",
        set: |args, value| values::count(value).map(|start| args.start = start),
    },
    Flag {
        long: "summary",
        short: None,
        value: Value::File("OUT"),
        at: CHECKS,
        about: "also write a summary, as the Sort Benchmark's tools do",
        doc: "\
Also write to OUT the 280-byte summary that the Sort Benchmark's validator writes and reads. Only for the benchmark's \
own records: --datamation.",
        set: |args, value| {
            args.summary = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        long: "merge",
        short: None,
        value: Value::None,
        at: CHECKS,
        about: "the files are summaries: check them as one sequence",
        doc: "\
The files are summaries, in the order of their parts: check them as one sequence without reading the parts again.",
        set: |args, _| {
            args.merge = true;
            Ok(())
        },
    },
    Flag {
        long: "streams",
        short: None,
        value: Value::Any("N"),
        at: PUMPS,
        about: "parallel streams [default: one for each core]",
        doc: "\
The number of lanes that read and write in parallel, each with 16 reads and 16 writes of 1 MiB in flight, which take \
at most 34 MiB of memory. Without this flag, one for each core. To or from a stream there is one.",
        set: |args, value| values::threads(value).map(|streams| args.streams = Some(streams)),
    },
    Flag {
        long: "limit",
        short: None,
        value: Value::Any("RATE"),
        at: At::Commands(&[Pump, Volume]),
        about: "the most bytes in a second, all streams together",
        doc: "\
The most bytes to read per second, all lanes together, as in 50MB.

With volume repair: does not repair now, but sets how much the volume copies in a second when it repairs itself, 64 MiB \
unless it is set. With 0 it does not repair itself.",
        set: |args, value| values::bytes(value).map(|rate| args.limit = Some(rate)),
    },
    flags_pump::VERIFY,
    flags_pump::NO_DISK,
    flags_pump::THERE,
    flags_pump::THROUGH_SSH,
    flags_pump::NO_CHECKSUM,
    flags_pump::STRICT,
    flags_pump::EXCLUDE,
    flags_pump::INCLUDE,
    flags_pump::FILTER,
    flags_pump::DELETE,
    flags_pump::MAX_DELETE,
    flags_pump::DRY_RUN,
    flags_pump::COMPARE,
    flags_pump::UPDATE,
    flags_pump::EXISTING,
    flags_pump::NO_XATTRS,
    flags_pump::FILES_FROM,
    flags_volume::STORES,
    flags_volume::MANAGER,
    flags_volume::CLIENTS,
    flags_volume::STRIPE,
    flags_volume::WIDTH,
    flags_volume::COPIES,
    flags_volume::RECURSIVE,
    flags_volume::FORCE,
    flags_volume::BACKGROUND,
    flags_volume::READ_ONLY,
    flags_volume::OPTIONS,
    flags_volume::CACHE,
    flags_volume::HINT,
    flags_table::RESP,
    flags_table::PASSWORD_FILE,
    flags_table::TLS_CERT,
    flags_table::TLS_KEY,
    flags_cluster_tables::CAPACITY,
    flags_cluster_tables::INDEX,
    flags_cluster_tables::VARIANT,
    flags_cluster_tables::TRANSPORT,
    flags_cluster_tables::ON_DUPLICATE,
    flags_cluster_tables::PARITY,
    flags_cluster_tables::WAIT_SAFE,
    flags_cluster_tables::HEX,
    flags_cluster_tables::WHERE,
    flags_cluster_tables::FIRST,
    flags_cluster_tables::DESCENDING,
    flags_cluster_tables::KEYS_ONLY,
    flags_bench::SIZE,
    flags_bench::ROWS,
    Flag {
        long: "dir",
        short: None,
        value: Value::Dir("DIR"),
        at: BENCHES,
        about: "for the data; for io up to four [default: bench/data]",
        doc: "\
A directory for the benchmark's data, which is removed afterwards. Without this flag, bench/data below the current \
directory. bench io spreads its chunks over up to four, best on different disks: repeat the flag.",
        set: |args, value| {
            args.dirs.push(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        long: "nodes",
        short: None,
        value: Value::Any("N,..."),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Partition]),
        about: "how many nodes in this process",
        doc: "\
Sort, shuffle, merge, join or partition as a cluster of N nodes would, all of them inside this process: each reads a \
share of the input, receives the records of its key range or of its parts from all others, and processes those in its \
share of the memory. The output is byte for byte that of one node; for partition, only with --pick hash. Inputs and \
output must be files.",
        set: |args, value| values::numbers(value).map(|numbers| args.nodes.extend(numbers)),
    },
    Flag {
        long: "cluster",
        short: None,
        value: Value::Any("NAME|DIR"),
        at: ON_NODES,
        about: "run on the nodes of this cluster",
        doc: "\
Sort, shuffle, merge, join or partition on the nodes of this cluster: its name, or a directory as for --identity. Each \
node reads a share of the input, sends each record to the node that owns its key range, and processes the records of \
its own range. The limits --memory, --scratch and --threads apply to each node; without --memory, each node uses half \
of its available memory. A plain name is a file that all nodes see; nodes: before a name or pattern means each node's \
own files, below its data directory. An input with client: before its name is a file of this host, which the nodes \
read from here; an output with client: is a file of this host, to which they write. With nodes: before the output, \
each node writes a part of its own, or its share of the parts of a partition; {} in the name is the part's number.

With check: the files are those with nodes: before their names. With volume create: the stores are on these nodes. \
With table: the tables of this cluster.

Without this flag, a name with nodes: or client: means the cluster of --identity.",
        set: |args, value| {
            args.cluster = Some(value.to_os_string());
            Ok(())
        },
    },
    Flag {
        long: "shares",
        short: None,
        value: Value::OneOf("WHICH", &["planned", "equal"]),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Plan]),
        about: "planned or equal shares of nodes [default: planned]",
        doc: "\
How much each node of a cluster does. planned: the plan decides how much of the shared inputs each node reads and how \
large its key range is, provided that all nodes have stored rates from cluster probe and that unequal shares are \
predicted to be at least 10 % faster. equal: the same for all nodes, however fast they are.",
        set: |args, value| {
            values::choice(value, &[("planned", false), ("equal", true)]).map(|equal| args.equal = equal)
        },
    },
    Flag {
        long: "simulate",
        short: None,
        value: Value::Any("nodes=N,disk=RATE,link=RATE,..."),
        at: At::Commands(&[Plan]),
        about: "plan for a cluster that need not exist",
        doc: "\
Plan for a cluster that need not exist: nodes=N equal nodes; disk=RATE of each, for reads and writes together; \
link=RATE of each, in each direction. A RATE is in bytes per second, as in 2GB/s, or in bits, as in 100Gbit. Optional: \
memory=SIZE of each node (default: --memory, or else 64 GiB); data=SIZE of all inputs together (default: what fits in \
memory); cores=N of each node, as fast as this machine's (default: as many); trunk=RATE between the two halves of the \
nodes, in each direction. Takes no input and no output. --record says how long records are; lines count as 100 bytes.",
        set: |args, value| match args.simulate.replace(values::simulated(value)?) {
            None => Ok(()),
            Some(_) => Err("one cluster is simulated at a time".into()),
        },
    },
    Flag {
        long: "runs",
        short: None,
        value: Value::Any("N"),
        at: At::Commands(&[Bench, Cluster]),
        about: "the number of runs for each median",
        doc: "\
The number of runs of each median; without this flag 5. For cluster exchange, the number of rounds.",
        set: |args, value| values::runs(value).map(|runs| args.runs = Some(runs)),
    },
    Flag {
        long: "schedule",
        short: None,
        value: Value::OneOf("ORDER", &["together", "same", "shifted", "paced"]),
        at: At::Commands(&[Cluster]),
        about: "the order in which hosts send to the others",
        doc: "\
The order in which the hosts of cluster exchange send to each other. together: to all others at once. same: to one \
after the other, every host beginning with the first. shifted: to one after the other, beginning with the host after \
its own. paced: as shifted, but to the next host only when the last one has everything. Without this flag, the best \
order for the size.",
        set: |args, value| values::schedule(value).map(|schedule| args.schedule = Some(schedule)),
    },
    Flag {
        long: "may",
        short: None,
        value: Value::OneOf("WHAT", &["all", "status"]),
        at: At::Commands(&[Cluster]),
        about: "what a client may do [default: all]",
        doc: "\
What the certificate that cluster client makes permits. all: everything, as the owner's. status: to look at status, \
jobs and metrics, over links and over HTTP, and to read volumes and tables, but to change nothing.",
        set: |args, value| values::may(value).map(|may| args.may = Some(may)),
    },
    Flag {
        long: "identity",
        short: None,
        value: Value::Dir("DIR"),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Pump, Exec, Job, Node, Cluster, Volume, Table]),
        about: "the directory of the cluster file and certificates",
        doc: "\
The directory of the cluster file, the certificate and its key. Without this flag, the directory in the environment \
variable THALWEG_IDENTITY, or else thalweg in the user's configuration directory (a node has no such default).",
        set: |args, value| {
            args.identity = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        long: "listen",
        short: None,
        value: Value::Any("ADDRESS:PORT"),
        at: At::Commands(&[Node]),
        about: "where to listen [default: as the cluster file says]",
        doc: "\
Where to listen: an IP address and a port; port 0 takes a free one, which the first line of the output names. Without \
this flag, the address of this host in the cluster file.",
        set: |args, value| values::address(value).map(|address| args.listen = Some(address)),
    },
    flags_nodes::JOIN,
    Flag {
        long: "on",
        short: None,
        value: Value::Any("HOST,..."),
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Exec, Job, Node, Cluster]),
        about: "only these hosts, as in 'n[1-32],!n7'",
        doc: "\
Only these hosts, by their names in the cluster file, or @ROLE for all that have this role there. Brackets stand for \
numbers, as in n[1-32] or r[1-2]n[01-16,20]. A ! leaves out what follows it, wherever it stands: 'n[1-32],!n7', or \
'!@io' for all hosts without this role; quotes keep shells from reading ! and brackets. The flag may be repeated to \
add hosts.",
        set: |args, value| values::hosts(value).map(|hosts| args.on.extend(hosts)),
    },
    Flag {
        long: "via",
        short: None,
        value: Value::Any("HOST"),
        at: At::Commands(&[Exec, Node]),
        about: "use the links that this host's node keeps open",
        doc: "\
Go through the node of this host, which has links with all others open: one connection from here instead of one for \
each host. Without this flag, the host that the variable THALWEG_VIA names; without that, a connection to every host.",
        set: |args, value| values::text(value).map(|host| args.via = Some(host.to_string())),
    },
    Flag {
        long: "ssh",
        short: None,
        value: Value::Any("COMMAND"),
        at: At::Commands(&[Cluster, Pump]),
        about: "how to reach hosts over ssh",
        doc: "\
The program and its first arguments by which cluster install, up, down, remove and mend, and transfers with \
ssh://HOST, reach a host; the host's name follows them. Without this flag, the environment variable THALWEG_SSH, or \
else ssh, with the user's own settings.",
        set: |args, value| values::text(value).map(|text| args.ssh = Some(text.to_string())),
    },
    Flag {
        long: "timeout",
        short: None,
        value: Value::Any("TIME"),
        at: At::Commands(&[Exec, Cluster]),
        about: "end the command after this time, as in 10s or 5m",
        doc: "\
End the command on each host after this time: a number with ms, s, m or h; without a unit it is seconds. With cluster \
upgrade: how long to wait for the jobs of a node, and until all is sound again; 10m without this flag.",
        set: |args, value| values::duration(value).map(|time| args.timeout = Some(time)),
    },
    Flag {
        long: "detach",
        short: None,
        value: Value::None,
        at: At::Commands(&[Sort, Shuffle, Merge, Join, Partition, Exec]),
        about: "start it, print its id and do not wait for its end",
        doc: "\
Leave the command, or the job on the cluster, running on the nodes: this program prints its id and ends. The nodes \
keep the last 64 KiB of a command's output, or the receipt of a sort, for a day, and for at most 256 jobs: see job \
show and job watch.",
        set: |args, _| {
            args.detach = true;
            Ok(())
        },
    },
    Flag {
        long: "env",
        short: None,
        value: Value::Any("NAME=VALUE"),
        at: EXECUTES,
        about: "add a variable to its environment",
        doc: "\
Add a variable to the command's environment, which is otherwise that of the node; the flag may be repeated.",
        set: |args, value| values::variable(value).map(|variable| args.env.push(variable)),
    },
    Flag {
        long: "gather",
        short: None,
        value: Value::None,
        at: EXECUTES,
        about: "print the hosts' outputs at the end, equal ones once",
        doc: "\
Print each host's output together, in the order of the hosts, when all have ended. Output that is equal on several \
hosts is printed once, behind the list of these hosts, as in 'n[1-6,8]: '. At most the last 16 MiB of each are \
kept; if there was more, a line says so, and the status is 2. With --json, the outputs are in the object, one for \
each host.",
        set: |args, _| {
            args.gather = true;
            Ok(())
        },
    },
    Flag {
        long: "fanout",
        short: None,
        value: Value::Any("N"),
        at: EXECUTES,
        about: "run it on at most N hosts at a time",
        doc: "\
Run the command on at most N hosts at a time; the next begins where one has ended. Without this flag, on all at once. \
Standard input goes to all hosts at once, so such a command has none: write '< /dev/null' if it is not a terminal.",
        set: |args, value| values::at_once(value).map(|hosts| args.fanout = Some(hosts)),
    },
    Flag {
        long: "json",
        short: None,
        value: Value::None,
        at: At::Everywhere,
        about: "print the receipt, plan or report as one JSON object",
        doc: "\
Print exactly one JSON object on standard output: the receipt, plan, check or report. If standard output carries the \
records, the object goes to standard error. An error is still one plain line on standard error, with nothing on \
standard output.",
        set: |args, _| {
            args.json = true;
            Ok(())
        },
    },
    Flag {
        long: "progress",
        short: None,
        value: Value::OneOf("WHEN", &["auto", "always", "never"]),
        at: At::Everywhere,
        about: "show progress on standard error: auto, always or never",
        doc: "\
Show progress on standard error. auto: a bar, if that is a terminal. always: a bar on a terminal, otherwise a line \
each second. never: nothing.",
        set: |args, value| {
            let choices = [("auto", When::Auto), ("always", When::Always), ("never", When::Never)];
            values::choice(value, &choices).map(|when| args.progress = when)
        },
    },
    Flag {
        long: "quiet",
        short: Some('q'),
        value: Value::None,
        at: At::Everywhere,
        about: "print errors only",
        doc: "Print errors only: no receipt, no report, no progress. What --json asks for is still printed.",
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        long: "help",
        short: Some('h'),
        value: Value::None,
        at: At::Everywhere,
        about: "explain; -h in short, --help at length",
        doc: "Explain the command, or the program if there is none: -h in short, --help at length.",
        set: |args, _| {
            args.help = Some(Help::Long);
            Ok(())
        },
    },
    flags_records::ALL,
    Flag {
        long: "version",
        short: Some('V'),
        value: Value::None,
        at: At::Everywhere,
        about: "print the version",
        doc: "Print the version.",
        set: |args, _| {
            args.version = true;
            Ok(())
        },
    },
    Flag {
        long: "generate",
        short: None,
        value: Value::OneOf("WHAT", &["man", "complete-bash", "complete-zsh", "complete-fish"]),
        at: At::Everywhere,
        about: "print the manual page or a shell's completions",
        doc: "\
Print a document that is generated from the same tables as this help: the manual page in roff (man), or completions \
for a shell (complete-bash, complete-zsh, complete-fish).",
        set: |args, value| {
            let choices = [
                ("man", Document::Man),
                ("complete-bash", Document::Bash),
                ("complete-zsh", Document::Zsh),
                ("complete-fish", Document::Fish),
            ];
            values::choice(value, &choices).map(|document| args.generate = Some(document))
        },
    },
];
