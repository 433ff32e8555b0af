//! The table of commands: their names, arguments, texts and examples. Together with the table of flags it is the only
//! source of the help, the manual page and the completions.

pub(crate) use thalweg_verbs::Command;

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

/// The command's row.
pub(crate) fn info(command: Command) -> &'static CommandInfo {
    COMMANDS.iter().find(|info| info.command == command).expect("every command has a row in the table")
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
generator: a key of 10 bytes, then 90 bytes that identify the record.

COUNT may have up to 128 bits; k, M, G and T stand for powers of 1000, so 10M is ten million records, 1 GB.",
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
Benchmark's own validator prints: the number of records, the sum of their CRC-32 values, how many are out of order and \
where the first of them is, or how many have equal keys. The sum does not depend on the order, so it must be the same \
before and after a sort. The checksum of a receipt is another number, on the next line: the sum of a 128-bit hash of \
each record. Summaries do not contain it, so --merge does not print it.

With nodes: before a name or pattern, the files are those of each node of a cluster, and every node checks its own. \
All files together, in the order of the hosts, are one sequence, which must be in order across hosts too. A list \
shows the result of each host. With --cluster, the nodes also check tables, and files of a volume: each a share of them.

Ends with status 0 if all records are in order and 1 if not. An empty file is in order.",
        examples: &[
            ("thalweg check --datamation sorted", "records of 100 bytes with a key of 10"),
            ("thalweg check names.txt", "lines, compared as bytes"),
            ("thalweg check --datamation part0 --summary 0.sum", "one part, and its summary for later"),
            ("thalweg check --merge 0.sum 1.sum", "all parts, from their summaries"),
            ("thalweg check 'nodes:out/part-*'", "the output of a sort on a cluster"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Sort,
        name: "sort",
        synopsis: "[INPUT...] [-o OUTPUT]",
        about: "sort files of any size in bounded memory, and verify the output",
        doc: "\
Sorts the records of all inputs ('-' or none is standard input) into OUTPUT ('-' or none is standard output), which \
may be one of the inputs. Records with equal keys keep their order.

Without --record, records are lines, compared byte by byte as GNU sort does with LC_ALL=C; if the last line has no \
newline, one is added. Without --by, the key is the whole record.

Prints a receipt: the record counts and checksums of input and output, whether they agree, and for each stage the time \
that it took and the time that was planned. OUTPUT appears under its name only when it is complete; a run that is \
stopped leaves the input and an older OUTPUT as they were.

The letters of GNU sort (-k -t -n -r -u -S -T and others) are reserved for the meaning that they have there; if you \
use one, the error names Thalweg's own flag.",
        examples: &[
            ("thalweg sort names.txt -o sorted.txt", "lines"),
            ("thalweg sort table.csv -o sorted.csv --header 1", "lines below the names of columns"),
            ("thalweg sort records -o sorted --datamation --memory 1GiB", "benchmark records in a gigabyte"),
            ("thalweg sort log -o log --record 64 --by 0:8,16:4:desc", "in place, by two keys"),
            ("zcat words.gz | thalweg sort --unique | wc -l", "between pipes"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Shuffle,
        name: "shuffle",
        synopsis: "[INPUT...] [-o OUTPUT] --seed N",
        about: "put records in random order in bounded memory, and verify them",
        doc: "\
Writes the records of all inputs ('-' or none is standard input) to OUTPUT ('-' is standard output) in random order: \
every order is as likely as any other. OUTPUT may be one of the inputs.

The order depends only on --seed and on the positions of the records in the inputs, taken as one sequence; it does not \
depend on --memory, --threads or the machine. Do not use it where the order has to be secret.

Runs as a sort does, with eight more bytes for each record. Prints a receipt: the record counts and checksums of input \
and output, and whether they agree.",
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
        synopsis: "SORTED... [-o OUTPUT]",
        about: "merge sorted inputs into one output, and verify it",
        doc: "\
Merges the records of inputs that are each sorted ('-' is standard input; pipes are named like files) into OUTPUT ('-' \
is standard output), which may be one of the inputs. Records with equal keys come in the order of the inputs.

If an input is not sorted, the error names a record that is less than the one before it. No file is written then, but \
a stream has received the records up to there. If there are too many inputs for --memory, or for the limit on open \
files, they are sorted instead, which takes one more pass and accepts inputs that are not sorted.

Prints a receipt: the record counts and checksums of input and output, whether they agree, and whether the output is \
in order.",
        examples: &[
            ("thalweg merge part-* -o whole --datamation", "sorted parts into one file"),
            ("thalweg merge today all -o all --unique", "what is new into what was there"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Join,
        name: "join",
        synopsis: "LEFT RIGHT [-o OUTPUT]",
        about: "match the records of two inputs by key, and verify the output",
        doc: "\
For every record of LEFT and every record of RIGHT with the same key, OUTPUT gets one record: the left one followed by \
the right one; if records are lines, the text of --between separates them. One of the inputs may be '-', standard \
input; OUTPUT '-' is standard output. The inputs need not be sorted. OUTPUT is in the order of the keys, and records \
of one key come in the order of LEFT and then of RIGHT.

--type left also gives the left records that have no match: followed by zeros in place of the right record, or, if \
they are lines, unchanged. --type anti gives only these left records, unchanged.

Both inputs are sorted first, each in almost half of the memory. A key with many records on both sides takes no more.

Unlike join(1), this command joins whole records, including the key of the right one, and keys are bytes, not columns.

Prints a receipt: the records of each input and of the output, and whether the output has, for all keys together, left \
times right records.",
        examples: &[
            ("thalweg join orders people -o both --record 838 --by 0:16", "records of 838 bytes, key in front"),
            ("thalweg join new old -o unseen --type anti", "lines of `new` that `old` does not have"),
            ("thalweg join a b -o c --record 64 --by 8:4 --right-record 20 --right-by 0:4", "\
records of different formats"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Plan,
        name: "plan",
        synopsis: "sort [INPUT...] [-o OUTPUT]",
        about: "predict how a sort would run and how long it would take",
        doc: "\
Takes the same arguments as sort and prints what it would do: method, passes, memory, scratch space, the seconds of \
each stage, and what limits them. The prediction is computed from rates of this machine that were measured with less \
data. Reads a sample of the input. Stores measured rates for a day, and leaves nothing else.

For a sort on the nodes of a cluster (--cluster, or names with nodes:) it prints what every node reads, keeps in \
memory and spills, how long each stage takes, and what limits it: one node's disk, all links, a trunk. It uses the \
rates that cluster probe measured; if a node has none, all nodes are measured now, for a few seconds. --simulate plans \
for a cluster that need not exist.",
        examples: &[
            ("thalweg plan sort records -o sorted --datamation --memory 256MiB", "before sorting"),
            ("thalweg plan sort 'nodes:in/*' -o 'nodes:part-{}' --datamation", "on a cluster"),
            (
                "thalweg plan sort --simulate nodes=1000,disk=2GB/s,link=100Gbit,data=9TB",
                "on a cluster that does not exist",
            ),
        ],
        subjects: &["sort"],
    },
    CommandInfo {
        command: Command::Partition,
        name: "partition",
        synopsis: "[INPUT...] -o 'DIR/part-{}' --parts N",
        about: "distribute records over several files, and verify them",
        doc: "\
Distributes the records of all inputs ('-' or none is standard input) over N parts, each in the order of the input. \
--pick decides to which part a record goes: by ranges of the key, of equal size; by a hash of the key; or in turn. A \
pipe can be read only once, so it cannot be divided into ranges.

Without --record, records are lines; if the last line has no newline, one is added. Without --by, the key is the whole \
record. The parts are the same with any number of threads.

Prints a receipt: the record counts and checksums of input and output, whether they agree, and the size of each part. \
The parts appear under their names only when all are complete; a run that is stopped leaves older ones as they were.",
        examples: &[
            ("thalweg partition records -o 'parts/{}' --parts 8 --datamation", "ranges of the key"),
            ("thalweg partition log -o 'log-{}' --parts 16 --pick hash --by 0:12", "\
equal keys go to the same part"),
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
Copies every SOURCE, a file or a directory with everything in it, to DEST. If DEST is a directory, SOURCE goes into it \
under its own name; SOURCE/ with a slash at the end means its contents. If DEST does not exist, SOURCE becomes DEST. \
Several SOURCEs need a DEST that is a directory. \
If two of them have an entry of the same name for it, the one that is typed first is copied, or a directory rather \
than a file, and a line names the other; directories of the same name become one.

HOST:/PATH is a path on a host of the cluster, accessed as the user that its node runs as; all SOURCEs are on one \
host. Between two hosts the data goes directly from one to the other. DEST may name several hosts, as in \
n[1-32],!n7:/PATH; each sends on to the next what it receives. HOST:null: and HOST:zero:SIZE are such ends too, \
and --no-disk SIZE HOST:null: measures a link. A file whose name has a colon before its first slash is written ./a:b.

ssh://[USER@]HOST[:PORT]/PATH is a path on a host that ssh reaches, where ssh starts thalweg; the other end is here, \
or at another such host. The user's own ssh and its settings are used, and it prompts as usual. The data takes a \
direct link, encrypted with keys that are created for this transfer, if one can be opened within two seconds, and \
otherwise goes through ssh; the receipt says which. PATH is absolute and taken as it is typed; ssh://HOST/~/PATH is \
relative to the user's home directory there.

Either end may be a stream: '-' is standard input or output, and pipes and devices are named like files. zero:SIZE is \
a SOURCE of SIZE zero bytes; null: is a DEST that discards everything.

Permissions, times, owners where that is allowed, access control lists and other extended attributes, symbolic links, \
hard links and holes are copied. In a tree, pipes, sockets and devices are skipped and counted. A SOURCE that is \
a symbolic link is followed, links inside a tree are not.

A file appears under its name only when it is complete, and a tree that did not exist before only when all of it is \
complete and durable; in an existing directory, files appear one by one, and files with other names stay. What cannot be read, vanishes, or is \
overwritten while it is read, is left out and listed at the end, and the exit status is 4; a file that grows is copied \
as long as it was. A failing or full disk ends the transfer. What was copied by then stays beside DEST under a hidden \
name if --resume can continue from it.

--exclude, --include, --filter, --delete, --update, --existing and --files-from mean what they mean to rsync, as far as \
their help says; --dry-run shows what would be changed.

Prints a receipt: the checksums of input and output, whether they agree, what each end cost, and what limited the \
speed.",
        examples: &[
            ("thalweg pump big /mnt/other/big", "one file, with its time and permissions"),
            ("thalweg pump photos /mnt/backup", "a tree into a directory, as /mnt/backup/photos"),
            ("thalweg pump photos/ /mnt/backup --resume", "\
its contents, skipping files that are complete there"),
            ("thalweg pump photos/ /mnt/backup --delete --exclude '*.tmp' --dry-run", "what a mirror would change"),
            ("thalweg pump big copy --verify --limit 100MB", "slowly, and read back from the disk"),
            ("thalweg pump big n1:/data/big", "to a host of the cluster; n1:/data/big . copies it back"),
            ("thalweg pump n1:/data n2:/backup --resume", "\
from one host to another, continuing an earlier run"),
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
A volume is one file system over several directories, its stores, each preferably on a disk of its own. A file is cut \
into stripes, which go to the stores in turn, so that all disks work on it. volume:NAME/PATH is a file of a volume \
wherever a command on records takes a file; pump takes files and directories.

create NAME --stores DIR,...: makes a volume. Only its owner may enter its directories. --stripe, --width, --copies \
and --record set the layout of its files. With NODE:/DIR for each store, and for --manager, the nodes of a cluster \
create and serve them; --cluster or --identity says which cluster.

list: the volumes of this user, and where they are. status NAME: its stores, how much is in it, which files have fewer \
copies than they should, and how far a repair is that the volume makes by itself.

ls volume:NAME/PATH: the names in a directory. stat volume:NAME/PATH ...: all attributes of files and directories. \
mkdir volume:NAME/PATH ...: makes directories and their parents. rm volume:NAME/PATH ...: removes files and empty \
directories; with --recursive also directories with everything in them.

layout volume:NAME/DIR: the layout of files that will be created in a directory. With --stripe, --width, --copies or \
--record, sets it, and makes the directory if it does not exist.

hint volume:NAME/PATH [HINT]: how a file will be used, by every client that opens it from now on: sequential (read \
ahead from its beginning), random (read only what is requested), once (do not cache what was read) or normal.

check NAME: reads every byte of every copy, compares checksums and copies, and finds strips that belong to no file. \
Status 1 if something is wrong.

repair NAME: uses second copies to rewrite damaged blocks, to bring copies that missed writes up to date, and to \
rebuild copies that are gone. Removes strips that belong to no file. Then it checks. Other processes may use the \
volume meanwhile. Copies that missed writes while a store was away are also brought up to date without this command, \
seconds after the store is back; --limit sets how fast.

add-store NAME DIR: adds a store, for files that are created from now on.

replace NAME OLD NEW: puts a store in NEW in the place of the one in OLD. It moves what OLD still has, the manager too \
if it is there (not on a cluster), rebuilds the rest from second copies, and names what is lost. Then it repairs and \
checks.

salvage NAME DIR: copies everything that can be read to a new directory DIR, from the stores that exist. Lost bytes \
are holes in the copies, and are listed; then the status is 1. Without the manager's database, files are named by \
their numbers.

manager adopt NAME: goes on with a manager that its stores refuse: it was restored from a backup, copied or moved, or \
too few stores are there. Files that were made or removed since the backup are not as they were; check and repair \
find what is left of them. Refused while another manager of the volume is connected with its stores.

destroy NAME: removes a volume and all files in it, without asking, and says what it removed. Stores that are not \
there, for example on a disk that is not mounted, are named; then the status is 1. If a directory of the volume \
contains something that does not belong to it, or no directory is there, nothing is removed. --force removes what it \
can and forgets the volume.

Several processes of one user may use a volume at a time, on a cluster several clients; add-store, replace and destroy \
need it alone. On a cluster a store is written as NODE:/DIR.",
        examples: &[
            ("thalweg volume create films --stores /disk1,/disk2,/disk3", "over three disks"),
            (
                "thalweg volume create films --stores n1:/d1,n2:/d1,n3:/d1 --copies 2",
                "over three nodes; any one store may be lost",
            ),
            ("thalweg volume layout volume:films/raw --stripe 64KiB --record 838", "records of 838 bytes, in small stripes"),
            ("thalweg gen 10M volume:films/records", "a gigabyte of records in it"),
            ("thalweg volume replace films /disk2 /disk4", "when a disk fails, or before it does"),
            ("thalweg volume replace films n2:/d1 n5:/d1", "the same, when a node is gone"),
            ("thalweg volume salvage films saved", "what can be read when a disk is gone"),
        ],
        subjects: &[
            "create", "list", "status", "ls", "stat", "mkdir", "rm", "layout", "hint", "check", "repair", "add-store", "replace", "salvage",
            "manager", "destroy",
        ],
    },
    CommandInfo {
        command: Command::Mount,
        name: "mount",
        synopsis: "NAME DIR",
        about: "use a volume as a directory, with any program",
        doc: "\
Mounts the volume NAME on the directory DIR, over FUSE. Programs use the files in it like any others: names of any \
bytes, links, permissions, owners, times, extended attributes, and locks, which hold on all mounts of the volume. \
Synced data (fsync) is durable.

Runs until the volume is unmounted, by umount DIR or fusermount3 -u DIR, or by SIGINT or SIGTERM, and then ends with \
status 0. With --background it returns when the volume can be used.

Data that was read is cached, up to --cache bytes. Written data is sent a little later, at the latest by fsync and by \
close, which report data that could not be sent.

Users other than root need fusermount3, and other users cannot access their mounts; on a mount of root's, others may \
do what permissions allow. In /etc/fstab a line 'NAME DIR fuse.thalweg defaults 0 0' mounts a volume of root's if \
/sbin/mount.fuse.thalweg is a link to this program.

For each EIO, standard error gives the cause: file, byte and store.",
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
than 1 MiB. With --parity M+K any K nodes may fail; without it, the records of a node are lost when it fails. A node that is stopped \
gives its buckets to others, or writes to its directory those for which no other has room. With --index the \
nodes have pages that say where the buckets are, for --variant s; a page that is lost with its node is made again from the buckets.

list; status NAME: what each node has of a table, and what is lost (status 1); drop NAME: removes a table and all its records.

put NAME KEY VALUE ...: records, in place of those with these keys. update NAME KEY VALUE ...: other values of keys that are there. \
get NAME KEY ...; delete NAME KEY ... Status 1 if a key is not there. With --transport udp their requests travel in datagrams.

range NAME [LOW..HIGH]: records in order, from LOW on to below HIGH; either may be missing. find: those whose value meets --where. \
count NAME [LOW..HIGH]: how many there are, or meet --where. --variant says how these commands and the ones above find the nodes of \
records.

split NAME KEY [NODE]: makes a bucket begin at KEY, on NODE or on the first that has room. merge NAME KEY: merges the bucket that begins at KEY with the one before it. move NAME KEY NODE: moves the bucket with KEY. Records can be used meanwhile. Buckets with few records are also merged without being asked, but not those that 'split' made.

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
            "load", "dump", "split", "merge", "move",
        ],
    },
    CommandInfo {
        command: Command::Doctor,
        name: "doctor",
        synopsis: "",
        about: "report what this machine offers and lacks, with remedies",
        doc: "\
Examines io_uring, direct I/O, queue depths, the limits on locked memory and open files, huge pages, socket buffers, \
neighbour tables, multicast and free space, and says what to do about each thing that is weak or missing.",
        examples: &[("thalweg doctor --scratch /mnt/fast", "with the disk for scratch files")],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Bench,
        name: "bench",
        synopsis: "WHICH [FILE]...",
        about: "measure sorts, disks and transfers beside their lower bounds",
        doc: "\
sort: whole sorts, compared with their floor (the reads and writes of the plan, replayed by fio on the same disk) and with \
GNU sort. With FILES, text files of yours are sorted instead of generated data.

io: rates of buffered and direct I/O, synchronous, overlapped and in threads, by chunk size, over one or more directories.

incore: sorting in memory, compared with a plain copy of the same bytes.

pump: transfers on this machine: from disk to disk, compared with fio, cp and rsync; of many small files, compared with \
rsync; and without a disk.

river: records distributed in memory, compared with a plain copy on as many threads, and partitions of files, compared \
with fio.

Prints ratios that were measured in one run, and the targets. Writes the raw results as JSON to bench/results below the \
current directory. Drops caches before each run if the user may do that. Ends with status 1 if an output was wrong or a \
sort failed; a missed target does not change the status.",
        examples: &[
            ("thalweg bench sort --rows memory,two-pass", "two rows, each compared with its floor"),
            ("thalweg bench sort access.log", "a file of yours, compared with GNU sort"),
            ("thalweg bench sort --size 1MB", "a test that everything works"),
        ],
        subjects: &["sort", "io", "incore", "pump", "river"],
    },
    CommandInfo {
        command: Command::Exec,
        name: "exec",
        synopsis: "[--on HOSTS] -- COMMAND...",
        about: "run a command on the hosts of a cluster",
        doc: "\
Runs COMMAND on every host, or on those of --on, at the same time: as the user of the node there, in a process group \
of its own, without a shell, with the name of its host in the variable THALWEG_NODE. Its output is printed line by \
line, each after the name of its host (a line of over 1 MiB in pieces), or with --gather or --json for each host \
together. Standard input, unless it is a terminal, goes to all hosts.

When COMMAND ends, the rest of its process group is killed, children in the background too. Children that made a \
session of their own (setsid) are killed when the node ends. When this program is stopped or disappears, what it \
started is killed too, unless --detach was given. After --timeout COMMAND is killed, and its status is 137 (128 + 9). \
Ends with the largest exit status of all hosts; 128 + N if a signal ended the command there, 2 if a host could not run \
it.",
        examples: &[
            ("thalweg exec -- uname -r", "on all hosts"),
            ("thalweg exec --on n1,n2 --timeout 10s -- du -sh /data", "on two, for at most ten seconds"),
            ("thalweg exec --on 'n[1-32],!n7' --gather -- uname -r", "equal output is printed once"),
            ("thalweg exec --gather -- sh -c 'df | tail -n 1'", "a shell is a command like any other"),
        ],
        subjects: &[],
    },
    CommandInfo {
        command: Command::Job,
        name: "job",
        synopsis: "list|show ID|watch ID|cancel ID",
        about: "list, watch and cancel what runs on the hosts of a cluster",
        doc: "\
list: the jobs that run on each host, and the last ones that ended. show: everything about one job, with the end of \
its output if it was detached; for a sort on nodes, what each has read and written, and how fast. watch: follows a job \
to its end, from any client of the cluster; for a sort it then shows the receipt. cancel: ends a job on every host, \
within a second or two.

ID is what exec and sort print for a detached job, and what list shows; it may be shortened.",
        examples: &[("thalweg job list --on n1", "on one host"), ("thalweg job cancel 3f2a", "on all that run it")],
        subjects: &["list", "show", "watch", "cancel"],
    },
    CommandInfo {
        command: Command::Node,
        name: "node",
        synopsis: "run [--listen ADDRESS]|ping [--on HOSTS]",
        about: "be a node: the daemon on a host of a cluster",
        doc: "\
run: listens on one port for links and for HTTP from peers with a certificate of the cluster, and serves their \
requests. Prints one line of JSON when it is ready, and runs until SIGTERM or SIGINT, which end its jobs too.

Nodes open links to each other and keep them open. If the certificate in its directory is replaced, a node uses the \
new one within seconds.

ping: sends every node, or those of --on, the smallest request there is, a job without a process, and says how long \
each took.

The identity is the directory that cluster init made for this host. A node without one listens on loopback only, and \
serves only its status and metrics.",
        examples: &[
            ("thalweg node run --identity hosts/n1", "where the cluster file says"),
            ("srun -N4 thalweg node run --join DIR", "a cluster inside an allocation of Slurm"),
            ("thalweg node ping --via n1", "over the links that n1 keeps"),
        ],
        subjects: &["run", "ping"],
    },
    CommandInfo {
        command: Command::Cluster,
        name: "cluster",
        synopsis: "init NAME HOST...|WHAT [HOST...]",
        about: "create, inspect and change a cluster",
        doc: "\
init NAME HOST...: creates an authority, certificates and the cluster file in the identity's directory, with \
hosts/HOST below it for each host. A HOST is NAME, NAME=ADDRESS or NAME=ADDRESS:PORT, optionally followed by \
@WORD,...: roles for --on; data=DIR, the directory of its files with nodes:; memory=SIZE, the most memory that a job \
uses there; resp=PORT, where its node answers Redis clients.

status: asks every node. doctor: every node examines its host, and says what is weak or missing there. probe: measures \
every node's disk, cores, memory and link, all at the same time, in less than ten seconds; each node stores the rates \
beside its certificate, for plans and for the planned times in receipts. Nothing else should run there at the same \
time. exchange SIZE: every host sends SIZE bytes to every other, --runs times, and the command says how long that \
takes.

add HOST...: adds hosts. client NAME: makes a certificate for a person or a program, in clients/NAME; copy the whole \
directory to where it is used. --may says what it permits. drop NAME...: removes hosts and clients; their certificates \
are refused from then on, and nodes close their links, transfers and HTTP connections. renew [NAME...]: makes new \
certificates, keys and ids for these hosts and clients, or for all, which are valid for a year; install distributes \
them to hosts, and the old keys are useless from then on.

install: copies this program and each host's identity to it over ssh, into .local/share/thalweg in the user's home \
directory. up: starts the nodes. down: stops them. remove: deletes what install copied. mend: replaces nodes that do \
not answer. Where systemd runs, install writes a unit, which starts the node with its host. All five work on all hosts \
at once, or on those of --on, change nothing that is already as it should be, and say for each host what they did.

upgrade: copies this program to the hosts and restarts their nodes with it, one after the other, while the cluster is \
used. Before a node is restarted, every node must answer, every table have all its keys and the parity that it \
promises, and every volume in this user's list all its stores and copies; then it takes no new jobs, and those that run \
there end. It gives its buckets of tables to other nodes. The next follows when the node answers and all is sound \
again. If one does not come back, the command stops and names it; run again, it goes on there.

The authority's key stays in the identity's directory; whoever reads it can make certificates. hosts/HOST is for that \
host alone, clients/NAME for that client.",
        examples: &[
            ("thalweg cluster init river n1=10.0.0.1 n2=10.0.0.2", "two hosts"),
            ("thalweg cluster install && thalweg cluster up", "copy what they need, and start the nodes"),
            ("thalweg cluster exchange 2MB", "how fast all of them send to all others"),
            ("thalweg cluster drop n2", "remove a host"),
            ("thalweg cluster client grafana --may status", "a certificate that changes nothing"),
        ],
        subjects: &[
            "init", "install", "up", "upgrade", "status", "doctor", "probe", "exchange", "add", "drop", "renew", "client", "mend", "down",
            "remove",
        ],
    },
    CommandInfo {
        command: Command::Help,
        name: "help",
        synopsis: "[COMMAND]",
        about: "explain a command",
        doc: "Prints what COMMAND --help prints; without COMMAND, the list of commands.",
        examples: &[],
        subjects: &[],
    },
];

/// Text about the program as a whole: titles and paragraphs, shown by `help` and in the manual page.
pub(crate) const CHAPTERS: &[(&str, &str)] = &[
    (
        "Sizes",
        "\
A number with a unit: K, M, G, T or KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB are powers of 1000; without \
a unit it is bytes. Where that makes sense, a percentage, as in 10%.",
    ),
    (
        "Exit status",
        "\
0: done. 1: the check failed. 2: not possible; one line on standard error says what, where, how much, and the remedy. \
3: a change of a table may have been made, or not; the line says how to find out. \
4: pump copied all but what it lists, or deleted no more than --max-delete allows. \
128 + N: stopped by signal N, after removing temporary files (130 for SIGINT, 143 for SIGTERM). A second signal stops \
at once.",
    ),
];
