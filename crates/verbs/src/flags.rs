//! The options of the verbs: each row is a flag of the command and a keyword in Python.
//!
//! Invariant: a row holds the name, value, commands, text and setter; [`Ask`] decides what it means together with
//! others. Each row has a test case in the command's `flags_test.rs`.
//! Non-goal: opposites of other flags, hidden flags, abbreviations.

use std::path::PathBuf;

use crate::At::Commands;
use crate::Command::*;
use crate::Value::{Any, Dir, File, OneOf, Switch};
use crate::ask::Ask;
use crate::flag::{Flag, JOINS, KEYS, ON_NODES, PARTS, RECORDS, SORTS, SPILLS, WRITES, flag};
use crate::{on, values};

/// The options of all verbs but those of transfers alone.
#[rustfmt::skip] // The rows of a table.
pub(crate) const FLAGS: &[Flag<Ask>] = &[
    flag::<Ask>("output", File("OUTPUT"), WRITES, "where the records go; names of parts have {} in them", "\
Where the records go; '-' is standard output, and so is no --output at all. May be one of the inputs. A file appears \
under its name only when it is complete and durable.

With partition: the names of the parts, with {} once, where the number goes, as in 'DIR/part-{}'. Numbers begin at 0 \
and have as many digits as the last one.",
        |ask: &mut Ask, value| match ask.output.replace(value.to_owned()) {
            None => Ok(()),
            Some(first) => Err(format!("there is one output, and it is '{}' already", first.to_string_lossy())),
        }).short('o'),
    flag("record", Any("BYTES"), Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Check, Volume, Table]),
        "records of this many bytes instead of lines", "\
Every record has this many bytes, and the input holds a whole number of records. Without this flag, records are lines: \
the newline ends a record and is not part of it.

With volume: files hold records of this many bytes, and no record crosses the end of a stripe.",
        |ask, value| values::record_bytes(value).map(|bytes| ask.form.record = Some(bytes))),
    flag("prefixed", Switch, RECORDS, "records that begin with their length, instead of lines", "\
Every record begins with its length: four bytes, little-endian, which do not count themselves. Such records may hold \
any bytes and have any length below 4 GiB. Key offsets count from the first byte after the length. The start of a \
record is known only from the records before it, so a file is read from its start, on a cluster by one node.",
        on!(form.prefixed)),
    flag("header", Any("N"), Commands(&[Sort, Shuffle, Plan, Check]),
        "the first N lines of each input stay in front", "\
The first N lines of each input are a header, such as the names of columns: they are not sorted, and stay in front of \
the output. If there are several inputs, all must have the same header, and the output has it once; an empty input has \
none. For lines, on one node, and not with a sort that is resumed. With check: the header is not looked at.",
        |ask, value| values::header(value).map(|lines| ask.work.header = lines)),
    flag::<Ask>("by", Any("OFFSET:LENGTH[:desc],..."), KEYS, "the key: bytes of the record, compared in turn", "\
The parts of the key. Each is LENGTH bytes of the record from OFFSET on (the first byte is 0), compared as bytes; with \
:desc in descending order, otherwise (or with :asc) in ascending order. Parts compare in turn: the second decides if \
the first are equal. The flag may be repeated to add parts. Without it, the key is the whole record.

If a line is too short for a part, its existing bytes are compared, so --by 0:4294967295:desc sorts whole lines in \
descending order.",
        |ask, value| values::keys(value).map(|parts| ask.work.keys.extend(parts))).many(),
    flag("datamation", Switch, KEYS, "the Sort Benchmark's records: --record 100 --by 0:10", "\
The records of the Sort Benchmark (Datamation, 1985). The same as --record 100 --by 0:10.",
        on!(datamation)),
    flag("memory", Any("SIZE"), Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Table, Node]),
        "memory of the process [default: half of what is free]", "\
Memory for the whole process, as the kernel counts it: a promise, not a hint. The peak stays below 1.05 times SIZE or \
SIZE + 2 MiB, whichever is larger. A sort takes 16 MiB or more. That is enough for any input of up to 300 times SIZE \
whose records have at most a tenth of SIZE; a smaller SIZE may mean more passes. If a sort needs more, an error says \
at once how much. A percentage is relative to the available memory; the default is half of it. With table and node \
run: the memory for records of tables and their index.",
        |ask, value| values::parsed(value).map(|size| ask.work.memory = Some(size))),
    flag::<Ask>("scratch", Dir("DIR"), Commands(&[Sort, Shuffle, Join, Plan, Doctor, Table]),
        "for what does not fit in memory; repeat for more disks", "\
A directory for data that does not fit in memory. Repeat the flag to use up to 256 at once, preferably on different \
disks. Without it, a sort of files uses the disk space of the output itself, and needs only about a tenth more; \
nothing has to be freed at the end. For other input the default is the directory of the output, or, if the output is a \
stream, the directory for temporary files. With doctor: a directory to examine.",
        |ask: &mut Ask, value| {
            ask.work.scratch.push(PathBuf::from(value));
            Ok(())
        }).many(),
    flag("scratch-limit", Any("SIZE"), SPILLS, "the most scratch space to use, all directories together", "\
The most scratch space to use, all scratch directories together. A sort that would need more is refused before it \
starts. A percentage refers to the available space.",
        |ask, value| values::parsed(value).map(|size| ask.work.scratch_limit = Some(size))),
    flag("threads", Any("N"), WRITES, "threads that do the work [default: one for each core]", "\
The number of threads that work in parallel. Without this flag, one for each core. With partition, N threads read and \
N others write; fewer, if --memory does not hold the batches of so many.",
        |ask, value| values::threads(value).map(|threads| ask.work.threads = Some(threads))),
    flag("unique", Switch, Commands(&[Sort, Merge, Plan]), "of records with equal keys, keep only the first", "\
Keep only the first of records with equal keys. The receipt also has the count and checksum of the dropped records: \
out plus dropped must equal in.",
        on!(work.unique)),
    flag("resume", Switch, Commands(&[Sort, Plan, Pump]), "continue from what an earlier run left", "\
Continue from what an earlier run of the same command left: its scratch files and its partial output. Anything that is \
damaged or belongs to another input is not used: that work is done again, and a line on standard error says so. \
Without this flag, a run deletes what an earlier one left.

Give --memory in bytes, as in 1GiB, in both runs: a percentage, or the default, may be another size the next time, and \
only a run with the same size can continue.

With pump: continue from the hidden files beside DEST without rereading the data that was durable, and skip files at \
DEST that have the size and time of those at SOURCE. A source that has changed since then is copied from the \
beginning.",
        on!(work.resume)),
    flag("no-proof", Switch, SORTS, "for benchmarks: take no checksums of the records", "\
For benchmarks: leave out the proof, to see what it costs. The receipt then says how many records went in and came \
out, but not whether they are the same.",
        on!(work.no_proof)),
    flag("io", OneOf("WHICH", &["auto", "uring", "threads"]), Commands(&[Sort, Shuffle, Merge, Join, Plan, Partition, Gen, Check, Pump]),
        "how to read and write: auto, uring or threads", "\
How to read and write. uring: io_uring, or an error if this machine refuses it. threads: threads with blocking calls. \
auto: io_uring where it is allowed, otherwise threads; the receipt says which.",
        |ask, value| {
            use thalweg::IoChoice::*;
            let choices = [("auto", Auto), ("uring", Uring), ("threads", Threads)];
            values::choice(value, &choices).map(|io| ask.work.io = io)
        }),
    flag("pick", OneOf("HOW", &["range", "hash", "robin"]), PARTS, "by range, hash or robin [default: range]", "\
How the part of a record is chosen. range: by ranges of the key, which a sample of the input makes equal in size; keys \
of part 0 come before those of part 1. hash: by a hash of the key, so that equal keys go to the same part. robin: in \
turn, whatever the key; for lines, and for records that do not fill pages evenly, this starts again with each page, \
and the size of pages depends on --memory.",
        |ask, value| {
            use thalweg::PartitionPick::*;
            let choices = [("range", Range), ("hash", Hash), ("robin", Robin)];
            values::choice(value, &choices).map(|pick| ask.pick = pick)
        }),
    flag("parts", Any("N"), PARTS, "how many parts", "\
The number of parts, at most 4096. Each is a file, even if no record goes to it.",
        |ask, value| values::parts(value).map(|parts| ask.parts = Some(parts))),
    flag("split-keys", Switch, PARTS, "records with equal keys may lie in several parts", "\
With --pick range: records with equal keys may go to neighbouring parts, according to their place in the input, so \
that parts have equal sizes even if half of all records have the same key. Without this flag equal keys stay together.",
        on!(split_keys)),
    flag("seed", Any("N"), Commands(&[Shuffle]), "the seed of the random order: any number of 64 bits", "\
Selects the random order: a number of up to 64 bits. The same number gives the same order.",
        |ask, value| values::seed(value).map(|seed| ask.seed = Some(seed))),
    flag("type", OneOf("WHICH", &["inner", "left", "anti"]), JOINS,
        "which records: inner, left or anti [default: inner]", "\
Which records come out. inner: for each key, each left record with each right one. left: these, and left records \
without a match. anti: only left records without a match, unchanged.",
        |ask, value| {
            use thalweg::JoinKind::*;
            let choices = [("inner", Inner), ("left", Left), ("anti", Anti)];
            values::choice(value, &choices).map(|kind| ask.kind = kind)
        }),
    flag("right-record", Any("BYTES"), JOINS, "bytes of a record of RIGHT [default: as --record]", "\
The bytes of a record of RIGHT, if they differ from those of LEFT.",
        |ask, value| values::record_bytes(value).map(|bytes| ask.right_record = Some(bytes))),
    flag::<Ask>("right-by", Any("OFFSET:LENGTH[:desc],..."), JOINS, "the key of RIGHT [default: as --by]", "\
The parts of the key of RIGHT, if it has another place than in LEFT. They have the same lengths as those of --by, in \
the same order.",
        |ask: &mut Ask, value| values::keys(value).map(|parts| ask.right_keys.extend(parts))).many(),
    flag("between", Any("TEXT"), JOINS, "what separates the two lines of a match [default: a tab]", "\
The text between the left and the right line of a match. Without this flag, a tab.",
        |ask, value| values::between(value).map(|text| ask.between = Some(text))),
    flag("ascii", Switch, Commands(&[Gen]), "printable records instead of binary ones", "\
Printable records instead of binary ones: each is a line of 98 characters that ends in CR LF.",
        on!(generated.ascii)),
    flag("skewed", Switch, Commands(&[Gen]), "skewed keys instead of uniform ones", "\
Skewed keys: many begin with the same few bytes. Without this flag, keys are uniform.",
        on!(generated.skewed)),
    flag("start", Any("N"), Commands(&[Gen]), "number of the first record [default: 0]", "\
Number of the first record, up to 128 bits, written like COUNT. Parts that are generated separately, each from where \
the one before ended, are together the same as one run.",
        |ask, value| values::count(value).map(|start| ask.generated.start = start)),
    flag("summary", File("OUT"), Commands(&[Check]), "also write a summary, as the Sort Benchmark's tools do", "\
Also write to OUT the 280-byte summary that the Sort Benchmark's validator writes and reads. Only for the benchmark's \
own records: --datamation.",
        |ask, value| {
            ask.summary = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("merge", Switch, Commands(&[Check]), "the files are summaries: check them as one sequence", "\
The files are summaries, in the order of their parts: check them as one sequence without reading the parts again.",
        on!(merge)),
    flag("streams", Any("N"), Commands(&[Pump]), "parallel streams [default: one for each core]", "\
The number of lanes that read and write in parallel, each with 16 reads and 16 writes of 1 MiB in flight, which take \
at most 34 MiB of memory. Without this flag, one for each core. To or from a stream there is one.",
        |ask, value| values::threads(value).map(|streams| ask.pump.streams = Some(streams))),
    flag("limit", Any("RATE"), Commands(&[Pump, Volume]), "the most bytes in a second, all streams together", "\
The most bytes to read per second, all lanes together, as in 50MB.

With volume repair: does not repair now, but sets how much the volume copies in a second when it repairs itself, 64 MiB \
unless it is set. With 0 it does not repair itself.",
        |ask, value| values::bytes(value).map(|rate| ask.pump.limit = Some(rate))),
    flag("nodes", Any("N"), Commands(&[Sort, Shuffle, Merge, Join, Partition]), "how many nodes in this process", "\
Sort, shuffle, merge, join or partition as a cluster of N nodes would, all of them inside this process: each reads a \
share of the input, receives the records of its key range or of its parts from all others, and processes those in its \
share of the memory. The output is byte for byte that of one node; for partition, only with --pick hash. Inputs and \
output must be files.",
        |ask, value| values::nodes(value).map(|nodes| ask.nodes = Some(nodes))),
    flag("cluster", Any("NAME|DIR"), ON_NODES, "run on the nodes of this cluster", "\
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
        |ask, value| {
            ask.cluster = Some(value.to_os_string());
            Ok(())
        }),
    flag("shares", OneOf("WHICH", &["planned", "equal"]), Commands(&[Sort, Shuffle, Merge, Join, Partition, Plan]),
        "planned or equal shares of nodes [default: planned]", "\
How much each node of a cluster does. planned: the plan decides how much of the shared inputs each node reads and how \
large its key range is, provided that all nodes have stored rates from cluster probe and that unequal shares are \
predicted to be at least 10 % faster. equal: the same for all nodes, however fast they are.",
        |ask, value| {
            values::choice(value, &[("planned", false), ("equal", true)]).map(|equal| ask.work.equal = equal)
        }),
    flag("simulate", Any("nodes=N,disk=RATE,link=RATE,..."), Commands(&[Plan]),
        "plan for a cluster that need not exist", "\
Plan for a cluster that need not exist: nodes=N equal nodes; disk=RATE of each, for reads and writes together; \
link=RATE of each, in each direction. A RATE is in bytes per second, as in 2GB/s, or in bits, as in 100Gbit. Optional: \
memory=SIZE of each node (default: --memory, or else 64 GiB); data=SIZE of all inputs together (default: what fits in \
memory); cores=N of each node, as fast as this machine's (default: as many); trunk=RATE between the two halves of the \
nodes, in each direction. Takes no input and no output. --record says how long records are; lines count as 100 bytes.",
        |ask: &mut Ask, value| match ask.simulate.replace(values::simulated(value)?) {
            None => Ok(()),
            Some(_) => Err("one cluster is simulated at a time".into()),
        }),
    flag("identity", Dir("DIR"), Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Pump, Exec, Job, Node, Cluster, Volume, Table]),
        "the directory of the cluster file and certificates", "\
The directory of the cluster file, the certificate and its key. Without this flag, the directory in the environment \
variable THALWEG_IDENTITY, or else thalweg in the user's configuration directory (a node has no such default).",
        |ask, value| {
            ask.identity = Some(PathBuf::from(value));
            Ok(())
        }),
    flag::<Ask>("on", Any("HOST,..."), Commands(&[Sort, Shuffle, Merge, Join, Partition, Check, Plan, Exec, Job, Node, Cluster]),
        "only these hosts, as in 'n[1-32],!n7'", "\
Only these hosts, by their names in the cluster file, or @ROLE for all that have this role there. Brackets stand for \
numbers, as in n[1-32] or r[1-2]n[01-16,20]. A ! leaves out what follows it, wherever it stands: 'n[1-32],!n7', or \
'!@io' for all hosts without this role; quotes keep shells from reading ! and brackets. The flag may be repeated to \
add hosts.",
        |ask: &mut Ask, value| values::hosts(value).map(|hosts| ask.on.extend(hosts))).many(),
    flag("ssh", Any("COMMAND"), Commands(&[Cluster, Pump]), "how to reach hosts over ssh", "\
The program and its first arguments by which cluster install, up, down, remove and mend, and transfers with \
ssh://HOST, reach a host; the host's name follows them. Without this flag, the environment variable THALWEG_SSH, or \
else ssh, with the user's own settings.",
        |ask, value| values::text(value).map(|text| ask.ssh = Some(text.to_string()))),
    flag("detach", Switch, Commands(&[Sort, Shuffle, Merge, Join, Partition, Exec]),
        "start it, print its id and do not wait for its end", "\
Leave the command, or the job on the cluster, running on the nodes: this program prints its id and ends. The nodes \
keep the last 64 KiB of a command's output, or the receipt of a sort, for a day, and for at most 256 jobs: see job \
show and job watch.",
        on!(detach)),
];
