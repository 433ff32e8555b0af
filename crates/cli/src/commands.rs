//! The table of commands: their names, arguments, texts and examples. Together with the table of flags it is the only
//! source of the help, the manual page and the completions.

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Gen,
    Check,
    Sort,
    Shuffle,
    Merge,
    Join,
    Plan,
    Partition,
    Pump,
    Volume,
    Mount,
    Table,
    Doctor,
    Bench,
    Exec,
    Job,
    Node,
    Cluster,
    Help,
}

/// The row of a command.
pub(crate) struct CommandInfo {
    pub(crate) command: Command,
    /// The name, as typed.
    pub(crate) name: &'static str,
    /// A pattern of what follows the name.
    pub(crate) synopsis: &'static str,
    /// A description in one line.
    pub(crate) about: &'static str,
    /// The full description: paragraphs, separated by empty lines.
    pub(crate) doc: &'static str,
    /// Example command lines, each with what it does.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// The subcommands. If there are any, one of them must follow the name.
    pub(crate) subjects: &'static [&'static str],
}

impl Command {
    /// The command's row.
    pub(crate) fn info(self) -> &'static CommandInfo {
        COMMANDS.iter().find(|info| info.command == self).expect("every command has a row in the table")
    }

    /// The command with this name.
    pub(crate) fn named(name: &str) -> Option<Command> {
        COMMANDS.iter().find(|info| info.name == name).map(|info| info.command)
    }
}

/// The commands, in the order in which a new user needs them.
pub(crate) const COMMANDS: &[CommandInfo] = &[
    CommandInfo {
        command: Command::Gen,
        name: "gen",
        synopsis: "COUNT FILE",
        about: "generate records of the Sort Benchmark",
        doc: "\
Writes COUNT records of 100 bytes to FILE ('-' is standard output), byte for byte those of the Sort Benchmark's own \
generator: a key of 10 bytes, then 90 that tell which record it is.

COUNT goes up to 128 bits; k, M, G and T stand for powers of 1000, so 10M is ten million records, 1 GB.",
        examples: &[
            ("thalweg gen 10M records", "a gigabyte of binary records"),
            ("thalweg gen 1M - --ascii | head -n 3", "readable ones, on standard output"),
            ("thalweg gen 1M second --start 1M", "the second million of a larger set"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Check,
        name: "check",
        synopsis: "FILE...",
        about: "check that files are one sorted sequence",
        doc: "\
Reads the files in the order given, as parts of one sequence ('-' is standard input), and prints what the Sort \
Benchmark's own validator prints: the number of records, the sum of their CRC-32, how many are out of order and where the \
first of them is, or how many have equal keys. The sum does not depend on the order, so it must be the same before and \
after a sort. It is not the checksum of a receipt: that is the line after, the sum of a 128-bit hash of each record. \
Summaries do not hold it, so --merge does not print it.

With nodes: before a name or pattern, these are files that each node of a cluster has: every node checks its own, and those of each host in turn are one sequence, in order also from host to host. A row for each says what it had.

Ends with status 0 if all records are in order and 1 if not. An empty file is in order.",
        examples: &[
            ("thalweg check --datamation sorted", "records of 100 bytes with a key of 10"),
            ("thalweg check names.txt", "lines, compared as bytes"),
            ("thalweg check --datamation part0 --summary 0.sum", "one part, and its summary for later"),
            ("thalweg check --merge 0.sum 1.sum", "all parts, from their summaries"),
            ("thalweg check 'nodes:out/part-*'", "what a cluster sorted, where it lies"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Sort,
        name: "sort",
        synopsis: "[INPUT...] -o OUTPUT",
        about: "sort files of any size in bounded memory, and verify the output",
        doc: "\
Sorts the records of all inputs ('-' or none is standard input) into OUTPUT ('-' is standard output), which may be one of \
the inputs. Records with equal keys keep their order.

Without --record, records are lines compared as bytes, as GNU sort does with LC_ALL=C; a missing last newline is added. \
Without --by, the key is the whole record.

Prints a receipt: the record counts and checksums of input and output, whether they agree, and for each stage the time \
that it took and the time that was planned. \
OUTPUT appears under its name only when it is complete; a run that is stopped leaves the input and an older OUTPUT as \
they were.

The letters of GNU sort (-k -t -n -r -u -S -T and others) are reserved for the meaning that they have there; if you \
use one, the error names the flag of thalweg.",
        examples: &[
            ("thalweg sort names.txt -o sorted.txt", "lines"),
            ("thalweg sort records -o sorted --datamation --memory 1GiB", "benchmark records in a gigabyte"),
            ("thalweg sort log -o log --record 64 --by 0:8,16:4:desc", "in place, by two keys"),
            ("zcat words.gz | thalweg sort -o - --unique | wc -l", "between pipes"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Shuffle,
        name: "shuffle",
        synopsis: "[INPUT...] -o OUTPUT --seed N",
        about: "put records into a random order, in any memory, and prove it",
        doc: "\
Writes the records of all inputs ('-' or none is standard input) to OUTPUT ('-' is standard output) in random order: every \
order is as likely as any other. OUTPUT may be one of the inputs.

Which order it is depends on --seed and on where the records stand in the inputs, taken as one sequence, and on nothing \
else: not on --memory, --threads or the machine. Not for secrets.

Runs as sort does, with eight bytes more for each record, and prints a receipt: what went in, what came out, that they \
agree.",
        examples: &[
            ("thalweg shuffle names.txt -o mixed.txt --seed 1", "lines"),
            ("thalweg shuffle a b -o c --record 100 --seed 7 --memory 1GiB", "two files of records as one"),
            ("thalweg shuffle 'nodes:in/*' -o 'nodes:mixed-{}' --seed 7", "what the hosts of a cluster have"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Merge,
        name: "merge",
        synopsis: "SORTED... -o OUTPUT",
        about: "merge inputs that are in order, and prove it",
        doc: "\
Merges the records of inputs that are each in order ('-' is standard input; pipes are named like files) into OUTPUT \
('-' is standard output), which may be one of the inputs. Records with equal keys come in the order of the inputs.

An input that is not in order is refused with a record that is less than the one before it; nothing is written then, \
but to a stream what was in order until there. More inputs than may be open at once, or than --memory has blocks for, \
are sorted instead, which takes a pass more and puts in order what is not.

Prints a receipt: what went in, what came out, that they agree, and that it is in order.",
        examples: &[
            ("thalweg merge part-* -o whole --datamation", "sorted parts into one file"),
            ("thalweg merge today all -o all --unique", "what is new into what was there"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Join,
        name: "join",
        synopsis: "LEFT RIGHT -o OUTPUT",
        about: "match the records of two inputs by their keys, and prove it",
        doc: "\
For every record of LEFT and every record of RIGHT with the same key, OUTPUT gets one record: the bytes of the left one and \
behind them those of the right one, or of lines the left line, what --between says, and the right line. One of the inputs \
may be '-', standard input; OUTPUT '-' is standard output. The inputs need not be in order; OUTPUT is in the order of the \
keys, and records of one key come in the order of LEFT and then of RIGHT.

--type left also gives the left records that have no match, with zeros for the right one, and lines with nothing behind \
them. --type anti gives only those, as they are.

Both inputs are sorted in half of the memory each. A key that many records have on both sides takes no more.

Unlike join(1), this joins whole records, the key of the right one too, and keys are bytes and \
not columns.

Prints a receipt: what went in on either side, what came out, and that this is the sum over all keys of left times right.",
        examples: &[
            ("thalweg join orders people -o both --record 838 --by 0:16", "records of 838 bytes, key in front"),
            ("thalweg join new old -o unseen --type anti", "lines of the one that the other has not"),
            ("thalweg join a b -o c --record 64 --by 8:4 --right-record 20 --right-by 0:4", "unlike records"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Plan,
        name: "plan",
        synopsis: "sort [INPUT...] -o OUTPUT",
        about: "say what a sort would do and take, and run nothing",
        doc: "\
Takes the same arguments as sort and prints what it would do: method, passes, memory, scratch space, seconds of each \
stage, and what limits them. The prediction rests on rates of this machine that are measured at another size than \
what is planned. Reads a sample of the input; writes nothing that stays.

Of a sort on the nodes of a cluster (--cluster, or names with nodes:) it prints what every node reads, keeps and spills, how \
long each stage takes, and what limits it: one node's disk, all links, a trunk. It rests on what cluster probe measured, or, \
where a node keeps nothing of that, on rates that are measured in a few seconds now. --simulate plans for a cluster that \
nobody need have.",
        examples: &[
            ("thalweg plan sort records -o sorted --datamation --memory 256MiB", "before the real thing"),
            ("thalweg plan sort 'nodes:in/*' -o 'nodes:part-{}' --datamation", "on a cluster"),
            (
                "thalweg plan sort --simulate nodes=1000,disk=2GB/s,link=100Gbit,data=9TB",
                "on one that is not there",
            ),
        ],
        subjects: &["sort"],
    },
    CommandInfo {
        command: Command::Partition,
        name: "partition",
        synopsis: "[INPUT...] -o 'DIR/part-{}' --parts N",
        about: "part the records of files among several files, and prove it",
        doc: "\
Gives every record of all inputs ('-' or none is standard input) to one of N parts, where records keep the order of the \
input. Which part is --pick's to say: by ranges of the key, of equal size; by a hash of the key; or one after the other. A \
pipe can be read only once, so it has no ranges.

Without --record, records are lines; a missing last newline is added. Without --by, the key is the whole record. The parts \
are the same with any number of threads.

Prints a receipt: what went in, what came out, that they agree, and each part's share. The parts appear under their names \
only when all are whole; a run that is stopped leaves older ones as they were.",
        examples: &[
            ("thalweg partition records -o 'parts/{}' --parts 8 --datamation", "ranges of the key"),
            ("thalweg partition log -o 'log-{}' --parts 16 --pick hash --by 0:12", "equal keys meet in one part"),
            ("zcat words.gz | thalweg partition -o 'words-{}' --parts 4 --pick robin", "from a pipe"),
            ("thalweg partition 'nodes:in/*' -o 'nodes:part-{}' --parts 64", "on a cluster, some for each host"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Pump,
        name: "pump",
        synopsis: "SOURCE... DEST",
        about: "copy files and trees at the speed of the disks, and verify them",
        doc: "\
Copies every SOURCE, a file or a directory with all that is in it, to DEST. \
If DEST is a directory, SOURCE goes into it \
under its own name; of SOURCE/ with a slash at the end what is in it goes there. If there is no DEST yet, SOURCE becomes \
it. Several SOURCEs need a DEST that is a directory.

HOST:/PATH is a path on a host of the cluster, as the user that its node runs as; all SOURCEs are on one host. Between two \
hosts the data takes the direct way. HOST:null: and HOST:zero:SIZE are such ends too, and --no-disk SIZE HOST:null: \
measures a link. A file whose name has a colon before its first slash is written ./a:b.

ssh://[USER@]HOST[:PORT]/PATH is a path on a host that ssh reaches, where ssh starts thalweg; the other end is here, or at another such host. The \
user's own ssh and its settings are used, and it asks what it has to ask. The data takes a direct link if a port of the host \
can be reached within two seconds, sealed with keys that are made for this once, else it goes through ssh; the receipt says \
which. PATH begins at the root and is taken as it is typed; ssh://HOST/~/PATH begins at the user's directory there.

Either end may be a stream: '-' is standard input or output, and pipes and devices are named like files. zero:SIZE is a \
SOURCE of so many zeros, null: a DEST that keeps nothing.

Permissions, times, owners where that is allowed, symbolic links, further names of one file and holes are kept; access lists \
and extended attributes are not. In a tree, pipes, sockets and devices are passed over and counted. A SOURCE that is a \
symbolic link is followed, links inside a tree are not.

A file appears under its name only when it is whole, and a tree that was not there before only when all of it is there and \
durable; in a directory that was there, files appear one by one, and what is there under other names stays. The first \
error ends it. What is there by then stays hidden beside DEST if --resume can go on from it.

Prints a receipt: what went in, what came out, that they agree, what each end cost, and what the rest waited for.",
        examples: &[
            ("thalweg pump big /mnt/other/big", "one file, with its time and permissions"),
            ("thalweg pump photos /mnt/backup", "a tree into a directory, as /mnt/backup/photos"),
            ("thalweg pump photos/ /mnt/backup --resume", "what is in it, leaving alone what is whole there"),
            ("thalweg pump big copy --verify --limit 100MB", "slowly, and read back from the disk"),
            ("thalweg pump big n1:/data/big", "to a host of the cluster; n1:/data/big . is the way back"),
            ("thalweg pump n1:/data n2:/backup --resume", "from one host to another, continuing from what is there"),
            ("thalweg pump photos ssh://me@far/backup --resume", "to a host that ssh reaches"),
            ("thalweg pump --no-disk 10GB", "what the pump itself can do"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Volume,
        name: "volume",
        synopsis: "WHAT [NAME|volume:NAME/PATH]...",
        about: "files striped over several disks",
        doc: "\
A volume is one file system over several directories, best each on a disk of its own: its stores. A file is cut into stripes, which \
go to the stores in turn, so that all disks work on it. volume:NAME/PATH is a file in a volume wherever a command on records takes a file, \
and a file or directory in it for pump.

create NAME --stores DIR,...: makes a volume. Nobody but its owner may enter its directories. --stripe, --width, --copies and \
--record say how files are laid out in it. With NODE:/DIR for each store, and for --manager, the nodes of a cluster make them and \
serve them; --cluster or --identity says which cluster.

list: the volumes of this user, and where they are. status NAME: its stores, and how much is in it.

ls volume:NAME/PATH: the names in a directory. stat volume:NAME/PATH ...: all that is known of files and directories. \
mkdir volume:NAME/PATH ...: makes directories, and those above them that are not there. rm volume:NAME/PATH ...: removes files and \
empty directories; with --recursive also directories with everything in them.

layout volume:NAME/DIR: how files are laid out that are made in a directory. With --stripe, --width, --copies or --record, sets that \
for files made from now on, and makes the directory if it is not there.

hint volume:NAME/PATH [HINT]: how a file will be used, by any client that opens it from now on: sequential (read ahead from its \
beginning on), random (read nothing but what is asked for), once (do not remember what was read) or normal.

check NAME: reads every byte of every copy, compares checksums and copies, and finds strips that no file has. Status 1 if something is wrong.

repair NAME: mends what a second copy allows: damaged blocks are written anew, copies that missed writes get these, and copies that \
are gone are made anew. Removes strips that no file has. Then it checks. Others may use the volume meanwhile.

add-store NAME DIR: a further store, for files that are made from now on.

replace NAME OLD NEW: a store in NEW takes the place of the one in OLD. What OLD still has moves, the manager too if it is there (not on a \
cluster); of what it has lost, second copies are used to make it anew, and the rest is named. Then it repairs and checks.

salvage NAME DIR: copies what can be read to a new directory DIR, from the stores that are there. Bytes that are lost are holes in \
the copies, and are listed; then the status is 1. Without the manager's database files are called after their numbers.

destroy NAME: removes a volume and all files in it, without a question, and says what it removed. If a directory of the volume has \
something in it that is not the volume's, nothing is removed. --force removes what can be removed and forgets the volume.

Several processes of one user may use a volume at a time, and several clients one on a cluster; add-store, replace and destroy \
need it alone. On a cluster a store is written as NODE:/DIR.",
        examples: &[
            ("thalweg volume create films --stores /disk1,/disk2,/disk3", "over three disks"),
            (
                "thalweg volume create films --stores n1:/d1,n2:/d1,n3:/d1 --copies 2",
                "over three nodes, any one store of which may be lost",
            ),
            ("thalweg volume layout volume:films/raw --stripe 64KiB --record 838", "records of 838 bytes, in small stripes"),
            ("thalweg gen 10M volume:films/records", "a gigabyte of records in it"),
            ("thalweg volume replace films /disk2 /disk4", "when a disk fails, or before it does"),
            ("thalweg volume replace films n2:/d1 n5:/d1", "the same, when a node is gone"),
            ("thalweg volume salvage films saved", "what can be read when a disk is gone"),
        ],
        subjects: &[
            "create", "list", "status", "ls", "stat", "mkdir", "rm", "layout", "hint", "check", "repair", "add-store", "replace", "salvage",
            "destroy",
        ],
    },
    CommandInfo {
        command: Command::Mount,
        name: "mount",
        synopsis: "NAME DIR",
        about: "use a volume as a directory, with any program",
        doc: "\
Mounts the volume NAME on the directory DIR, over FUSE. Programs use the files in it like any others: names of any bytes, links, \
permissions, owners, times, extended attributes, and locks, which hold on all mounts of the volume. \
What was synced (fsync) is durable.

Runs until the volume is unmounted, by umount DIR or fusermount3 -u DIR, or by SIGINT or SIGTERM, and then ends with status 0. With \
--background it returns when the volume can be used.

What is read is remembered in up to --cache bytes, and what is written is sent a little later: by fsync and by close at the latest, \
which report what could not be sent.

Whoever is not root needs fusermount3, and is alone with the mount; of root's mount others can use what permissions allow. \
In /etc/fstab a line 'NAME DIR fuse.thalweg defaults 0 0' mounts a volume of root's if this program is also called \
/sbin/mount.fuse.thalweg, by a link.

EIO has its cause told on standard error: file, byte and store.",
        examples: &[
            ("thalweg mount films /mnt/films", "until Ctrl-C, or umount /mnt/films"),
            ("thalweg mount films /mnt/films --background --read-only", "to look at it"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Table,
        name: "table",
        synopsis: "WHAT [NAME [KEY|VALUE|LOW..HIGH ...]]",
        about: "ordered records in memory, on many nodes or for any Redis client",
        doc: "\
create NAME: makes a table on the nodes of a cluster. Its records are in order of key in the memory of the nodes, in buckets; a bucket \
with more than --capacity records is split, while it is used, and another node gets a part. A key has at most 2,047 bytes, a value less \
than 1 MiB. There are no copies: the records of a node are lost when it ends.

list; status NAME: what each node has of a table, and what is lost (status 1); drop NAME: removes a table and all its records.

put NAME KEY VALUE ...: records, in place of those with these keys. update NAME KEY VALUE ...: other values of keys that are there. \
get NAME KEY ...; delete NAME KEY ... Status 1 if a key is not there.

range NAME [LOW..HIGH]: records in order, from LOW on to below HIGH; either may be missing. find: those whose value meets --where. \
count NAME [LOW..HIGH]: how many there are, or meet --where.

load NAME FILE ...: sorts records of --record bytes by --by, and puts them into a table without records, all or none. The bytes \
beside the key are the value. dump NAME FILE: the records of a loaded table as they were. sort and the other commands on records \
read table:NAME and table:NAME@LOW..HIGH, and sort and merge write table:NAME.

serve: holds records in memory, in the order of their keys, and serves them to any Redis client. Keys with strings, hashes, and \
sorted sets whose members have one score; ranges by ZRANGE KEY LOW HIGH BYLEX, of sorted sets and of the fields of hashes. MULTI, \
WATCH and EXEC; keys that end (EXPIRE). 'COMMAND LIST' names all commands. A key has at most 2,047 bytes, a value less than 1 MiB. \
When the memory is full, what needs more is refused, and nothing is dropped.

Runs until SIGINT or SIGTERM. Nothing is written to a disk: its records end with it.",
        examples: &[
            ("thalweg table create events", "on the nodes of the cluster"),
            ("thalweg table put events 2026-01-31 'began' 2026-02-01 'ended'", "two records"),
            ("thalweg table range events 2026-01..2026-02", "those of January"),
            ("thalweg table find events --where contains:began --first 10", "the first ten that began"),
            ("thalweg table load events records --record 100 --by 0:10", "from a file, sorted on the way"),
            ("thalweg table dump events sorted", "the records of that file in order"),
            ("thalweg table serve --resp 127.0.0.1:6379", "then redis-cli SET films 12"),
            ("thalweg table serve --resp unix:/run/user/1000/tables --memory 1GiB", "for this user only"),
        ],
        subjects: &[
            "serve", "create", "list", "status", "drop", "put", "update", "get", "delete", "range", "count", "find",
            "load", "dump",
        ],
    },
    CommandInfo {
        command: Command::Doctor,
        name: "doctor",
        synopsis: "",
        about: "say what this machine offers and lacks, each with its remedy",
        doc: "\
Looks at io_uring, direct I/O, queue depths, the limits on locked memory and open files, huge pages, socket buffers, \
neighbour tables and free space, and says what to do about each thing that is weak or missing.",
        examples: &[("thalweg doctor --scratch /mnt/fast", "with the disk that is meant for scratch")],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Bench,
        name: "bench",
        synopsis: "WHICH",
        about: "measure this machine: ratios to a floor and to rivals",
        doc: "\
sort: whole sorts, compared with their floor (the reads and writes of the plan, replayed by fio on the same disk), with \
GNU sort, and with other programs.

io: rates of buffered and direct I/O, synchronous, overlapped and in threads, by chunk size, over one or more directories.

incore: sorting in memory, compared with a plain copy of the same bytes.

pump: transfers on one host: from disk to disk, compared with fio, cp and rsync; of many small files, compared with \
rsync; and without a disk.

launch: a null command on the nodes of a lab, compared with variants that leave parts out, and with other launchers over \
sshd in the same lab. Needs root, and the directory that contains lab/.

river: records distributed in memory, compared with a plain copy on as many threads, and partitions of files, compared \
with fio.

cluster: sorts on the nodes of a lab, each with its own files, over slow links and disks, compared with the time of the \
links and disks alone. Needs root, and the directory that contains lab/.

all-to-all: every node sends the same amount to every other node, under each schedule, compared with the time of the \
links alone. Needs root, and the directory that contains lab/.

volume: files of a volume that is spread over the hosts of a lab, each with a mount, compared with NFS; and on four \
directories of this machine, through a mount and through the library, compared with fio, with a FUSE file system that has \
no data, and with GlusterFS and MooseFS. Needs root, and the directory that contains lab/.

table: a server of tables on this machine, compared with Redis, by redis-benchmark, and with etcd.

Prints ratios that were measured in one run, and the targets. Writes the raw results as JSON to bench/results below the \
current directory. Drops caches before each run if the user may do that. Ends with status 1 if an output was wrong or a \
sort failed; a missed target does not change the status.",
        examples: &[
            ("thalweg bench sort --rows memory,two-pass", "two rows, each compared with its floor"),
            ("thalweg bench sort --size 1MB", "a test that everything works"),
        ],
        subjects: &["sort", "io", "incore", "pump", "launch", "river", "cluster", "all-to-all", "volume", "table"],
    },
    CommandInfo {
        command: Command::Exec,
        name: "exec",
        synopsis: "[--on HOSTS] -- COMMAND...",
        about: "run a command on the hosts of a cluster",
        doc: "\
Runs COMMAND on every host, or on those of --on, at the same time: as the user of the node there, in a process group of \
its own, without a shell. Its output comes line by line, each behind the name of its host (one of over 1 MiB in pieces), or with --gather for each \
host together. Standard input, unless it is a terminal, goes to all of them.

When COMMAND ends, what it left in its process group is killed: children in the background too, unless they made a \
session of their own (setsid), and those too when the node ends. When this command is stopped, or vanishes, so is what \
it started, unless --detach was given. After --timeout COMMAND is killed, and its status is 137 (128 + 9). Ends with the largest exit \
status of all hosts; 128 + N if a signal ended the command there, 2 if a host could not run it.",
        examples: &[
            ("thalweg exec -- uname -r", "on all hosts"),
            ("thalweg exec --on n1,n2 --timeout 10s -- du -sh /data", "on two, for at most ten seconds"),
            ("thalweg exec --gather -- sh -c 'df | tail -n 1'", "a shell is a command like any other"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Job,
        name: "job",
        synopsis: "list|show ID|watch ID|cancel ID",
        about: "what runs on the hosts of a cluster, and what ran last",
        doc: "\
list: the jobs that run on each host, and the last that ended. show: all there is about one, with the end of its output \
if it was detached; of a sort on nodes what each has read and written, and how fast. watch: follows it to its end, from \
any client of the cluster; of a sort it shows the receipt then. cancel: ends it on every host, within a second or two.

ID is what exec and sort say of a detached job, and what list shows; it may be shortened.",
        examples: &[("thalweg job list --on n1", "on one host"), ("thalweg job cancel 3f2a", "on all that run it")],
        subjects: &["list", "show", "watch", "cancel"],
    },
    CommandInfo {
        command: Command::Node,
        name: "node",
        synopsis: "run [--listen ADDRESS]|ping [--on HOSTS]",
        about: "be a node: the daemon on a host of a cluster",
        doc: "\
run: listens on one port for links and for HTTP from peers with a certificate of the cluster, and does what they ask. Prints \
one line of JSON when it is ready, and runs until SIGTERM or SIGINT, which end its jobs too.

Nodes open links with each other and keep them. A certificate that is replaced in its directory is taken within seconds.

ping: has every node, or those of --on, do the least there is, a job without a process, and says how long each took.

The identity is the directory that cluster init made for this host. A node without one listens on loopback only, and \
answers with its status and nothing else.",
        examples: &[
            ("thalweg node run --identity hosts/n1", "where the cluster file says"),
            ("thalweg node ping --via n1", "over the links that n1 keeps"),
        ],
        subjects: &["run", "ping"],
    },
    CommandInfo {
        command: Command::Cluster,
        name: "cluster",
        synopsis: "init NAME HOST...|WHAT [HOST...]",
        about: "make a cluster, look at it, change it",
        doc: "\
init NAME HOST...: makes an authority, certificates and the cluster file in the identity's directory, with hosts/HOST below \
it for each host. A HOST is NAME, NAME=ADDRESS or NAME=ADDRESS:PORT, and behind that perhaps @WORD,...: roles for --on, data=DIR where \
its files with nodes: are, memory=SIZE that a share of a sort has there at most, resp=PORT where its node answers Redis clients. status: asks every node. doctor: every node looks at its host, and says what is weak or missing there. probe: measures every node's disk, cores, memory and \
link, all at the same time, in less than ten seconds; each node keeps what was found beside its certificate, for plans and \
for what receipts say of sorts on the cluster. Nothing else should go on there meanwhile. exchange SIZE: every \
host sends as much to every other, --runs times, and it says how long that takes. add HOST...: takes hosts in. \
client NAME: makes a certificate for a person or a program, in clients/NAME, to be copied whole to where it is used; --may \
says what for. drop NAME...: puts hosts and clients out; their certificates are refused from then on, and nodes close their \
links, transfers and HTTP. renew [NAME...]: makes new certificates, keys and ids for these hosts and clients, or for all, which \
hold for a year; install brings them, and the old keys are worth nothing from then on.

install: brings this program and each host's identity to it over ssh, where they lie in .local/share/thalweg of the user's \
directory. up: starts the nodes. down: ends them. remove: takes away what install brought. mend: puts new nodes in the place of those \
that do not answer. Where systemd runs, install writes a unit for it, which starts the node with its host. All five work on \
all hosts at once, or on those of --on, leave alone what is so already, and say for each host what they did.

The authority's key stays in that directory; whoever reads it can make certificates. hosts/HOST is for that host alone, \
clients/NAME for that client.",
        examples: &[
            ("thalweg cluster init river n1=10.0.0.1 n2=10.0.0.2", "two hosts"),
            ("thalweg cluster install && thalweg cluster up", "bring them what they need, and start"),
            ("thalweg cluster exchange 2MB", "how well all of them send to all others at once"),
            ("thalweg cluster drop n2", "one of them is not ours any more"),
            ("thalweg cluster client grafana --may status", "a certificate for what only looks"),
        ],
        subjects: &[
            "init", "install", "up", "status", "doctor", "probe", "exchange", "add", "drop", "renew", "client", "mend", "down",
            "remove",
        ],
    },
    CommandInfo {
        command: Command::Help,
        name: "help",
        synopsis: "[COMMAND]",
        about: "explain a command",
        doc: "Prints what COMMAND --help prints, or without COMMAND the list of commands.",
        examples: &[],
        subjects: &[],
    },
];

/// Text about the program as a whole: titles and paragraphs, shown by `help` and in the manual page.
pub(crate) const CHAPTERS: &[(&str, &str)] = &[
    (
        "Sizes",
        "A number with a unit: K, M, G, T or KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB are powers of 1000; \
         without a unit it is bytes. Where a share makes sense, a percentage: 10%.",
    ),
    (
        "Exit status",
        "0: done. 1: checked and found wrong. 2: could not do it; one line on standard error says what, where, how \
         much, and the remedy. 128 + N: stopped by signal N, and cleaned up (130 for SIGINT, 143 for SIGTERM). A second \
         signal stops at once.",
    ),
];
