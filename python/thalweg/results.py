"""What calls return: frozen dataclasses with the fields that the command prints with ``--json``.

``str()`` of a receipt, a plan or a report is what the command prints. Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from thalweg._objects import Checksum, Object, counted


@dataclass(frozen=True, kw_only=True)
class Proof(Object):
    """A summary of a stream of records, taken while all of it passed. The proofs of parts can be merged."""

    records: int
    """The number of records."""
    bytes: int
    """Bytes of the records, without line terminators."""
    checksum: Checksum
    """Sum mod 2^128 of a 128-bit hash of each record; the order does not matter."""
    unordered: int
    """Records that are greater than the next one."""
    duplicates: int
    """Records with the same key as the one before."""


@dataclass(frozen=True, kw_only=True)
class Stage(Object):
    """One stage of a run."""

    name: str
    """What it does: ``sample``, ``read+distribute``, ``load+merge+write``, ..."""
    seconds: float
    """Wall-clock seconds."""
    predicted_seconds: float | None
    """The seconds that the plan predicted, if it did."""
    waited_read_seconds: float
    """Seconds, summed over the lanes, spent waiting for reads."""
    waited_write_seconds: float
    """Seconds, summed over the lanes, spent waiting for writes or for a free block."""
    read_bytes: int
    """Bytes read from disks in this stage."""
    written_bytes: int
    """Bytes written to disks in this stage."""


@dataclass(frozen=True, kw_only=True)
class Disk(Object):
    """Disk traffic of one purpose."""

    read_bytes: int
    """Bytes read."""
    written_bytes: int
    """Bytes written."""


@dataclass(frozen=True, kw_only=True)
class IoReceipt(Object):
    """How bytes were moved."""

    backend: str
    """``uring``, ``threads``, ``uring+threads`` if it had to change, or ``sim``."""
    fallback: str | None
    """Why another back end was used than requested or expected, if so."""
    cached_input_bytes: int
    """Input bytes that came from the page cache."""
    direct_output: bool
    """Whether the output bypassed the page cache."""
    input: Disk
    """Traffic on inputs."""
    scratch: Disk
    """Traffic on scratch files."""
    output: Disk
    """Traffic on the output."""


@dataclass(frozen=True, kw_only=True)
class MemoryReceipt(Object):
    """The memory limit and the memory used."""

    limit_bytes: int
    """The limit (``memory``) of the call."""
    peak_bytes: int
    """The peak resident size of the whole process, as the kernel counts it: what the program holds beside the call is
    in it, and what it held before."""
    huge_page_bytes: int
    """Bytes in huge pages at the end of the work."""


@dataclass(frozen=True, kw_only=True)
class Sides(Object):
    """The inputs of a join, and what it found."""

    left: Proof
    """Proof of the left input."""
    right: Proof
    """Proof of the right input."""
    pairs: int
    """Output records with a right part."""
    unmatched: int
    """Output records without a right part."""


@dataclass(frozen=True, kw_only=True)
class GrownInputs(Object):
    """Inputs that grew while they were read. What counts is their length when they were opened."""

    inputs: int
    """How many files have grown."""
    bytes: int
    """By how many bytes, all together; these were not read."""
    incomplete_records: int
    """How many of them ended in an incomplete record, which was left out."""
    incomplete_bytes: int
    """Bytes of the incomplete records."""


@dataclass(frozen=True, kw_only=True)
class PartReceipt(Object):
    """One part."""

    path: str
    """Its name."""
    records: int
    """How many records."""
    file_bytes: int
    """Bytes of the file."""
    checksum: Checksum
    """Sum mod 2^128 of a 128-bit hash of each record."""


@dataclass(frozen=True, kw_only=True)
class NodeReceipt(Object):
    """What one of several nodes did."""

    host: str
    """The host."""
    pid: int
    """The process."""
    input: tuple[int, int]
    """Records and bytes that it read."""
    output: tuple[int, int]
    """Records and bytes that it wrote."""
    link_bytes: tuple[int, int]
    """Bytes of frames that it sent to other nodes and received from them, on all its links in that time."""
    seconds: tuple[float, float, float]
    """Seconds until its sample was taken, until its range had arrived, and until everything was written."""
    cpu_seconds: float
    """CPU seconds of its process in that time."""
    memory_bytes: int
    """Memory that its part of the job had."""
    peak_bytes: int
    """The peak memory of its process."""
    huge_page_bytes: int
    """Anonymous memory of its process in huge pages when all was written."""
    scratch_peak_bytes: int
    """The most scratch space in use at once."""
    sampled_bytes: int
    """Bytes of its inputs that were read for a sample."""
    sides: Sides | None = None
    """The inputs of its join, and what it found."""
    parts: tuple[PartReceipt, ...] = ()
    """The parts that it wrote, if the output is in parts."""


@dataclass(frozen=True, kw_only=True)
class Hardware(Object):
    """Rates of this machine, measured at another size than what is planned, or assumed."""

    measured_bytes: int
    """Bytes of records that the cores' rates were measured on; 0 if nothing was measured and all rates are
    assumed."""
    measured_at_seconds: int
    """When it was measured, in seconds since the Unix epoch; 0 if it was not."""
    cores: int
    """Cores that can work at once."""
    read_bytes_per_second: float
    """Bytes per second of large reads from the input's disk."""
    write_bytes_per_second: float
    """Bytes per second of large writes to the scratch or output disk."""
    mixed_bytes_per_second: float
    """Bytes per second, read and written added, when both go on at once."""
    sync_seconds: float
    """Seconds to make durable what was written."""
    distribute_records_per_second: float
    """Records of 100 bytes that one core distributes per second."""
    sort_records_per_second: float
    """Records of 100 bytes that one core sorts and gathers per second."""


@dataclass(frozen=True, kw_only=True)
class PlanStage(Object):
    """One stage of a plan."""

    name: str
    """The stage's name; the receipt uses the same."""
    read_bytes: int
    """Bytes it will read."""
    written_bytes: int
    """Bytes it will write."""
    seconds: float
    """Seconds it should take."""
    bottleneck: str
    """What limits it: ``disk read``, ``disk write``, ``disk read+write``, ``cpu``."""


@dataclass(frozen=True, kw_only=True)
class Plan(Object):
    """What a sort will do."""

    method: str
    """How the work is done: ``in memory``, ``distribute``, ``runs and merge``."""
    passes: int
    """How many times every byte that does not fit is read: 1 if all fits."""
    input_bytes: int
    """Input bytes."""
    records: int
    """Records, exact for fixed layouts, estimated from a sample for lines."""
    records_estimated: bool = False
    """Whether the number of records is an estimate."""
    block_bytes: int
    """Bytes of a block, the unit of traffic with inputs and output."""
    ranges: int
    """How many ranges the keys are cut into."""
    lanes: int
    """Lanes (threads) that do the work."""
    memory_bytes: int
    """The promise for the whole process."""
    scratch_bytes: int
    """Scratch space that will be needed."""
    open_files: int
    """Files open at once, at most."""
    hardware: Hardware
    """The rates the prediction rests on."""
    stages: tuple[PlanStage, ...]
    """Stages in order."""
    seconds: float
    """Seconds of all stages."""
    bottleneck: str
    """The stage and resource that take most of the time."""


@dataclass(frozen=True, kw_only=True)
class Receipt(Object):
    """What a run did. A verb succeeds only if its invariant holds between ``input`` and ``output``."""

    verb: str
    """The verb: ``sort``, ``shuffle``, ``merge``, ``join``, ``gen``."""
    input: Proof
    """Proof of the input."""
    output: Proof
    """Proof of the output."""
    dropped: Proof
    """Proof of what ``unique`` dropped."""
    sides: Sides | None
    """The sides of a join; ``input`` is their sum."""
    input_file_bytes: int
    """Bytes of the input files or streams, newlines included. 0 in receipts that are older than this
    field."""
    output_file_bytes: int
    """Bytes of the output file or stream, newlines included. 0 in receipts that are older than this field."""
    proved: bool
    """Whether checksums were taken. If not, proofs hold counts only."""
    holds: bool
    """Whether the verb's invariant holds."""
    seconds: float
    """Wall-clock seconds of the whole run."""
    cpu_seconds: float
    """CPU seconds of the whole process, user and system."""
    stages: tuple[Stage, ...]
    """Stages in order."""
    io: IoReceipt
    """How bytes were moved."""
    memory: MemoryReceipt
    """The memory used."""
    scratch_peak_bytes: int
    """The most scratch space in use at once, in bytes."""
    resumed_bytes: int
    """Input bytes that a resumed run did not have to read again."""
    resumed_output_bytes: int
    """Output bytes that a resumed run did not have to write again."""
    plan: Plan | None
    """The plan that was made before the run."""
    nodes: tuple[NodeReceipt, ...]
    """What each node did, if there were several."""
    failed: tuple[str, ...]
    """Why each earlier attempt failed, if nodes failed."""
    not_kept: tuple[str, ...] = ()
    """What the output lacks of the file that it replaced: attributes that could not be kept, and other names."""
    grown: GrownInputs | None = None
    """The inputs that grew while they were read, if any did."""
    pick: str | None = None
    """Of a partition: ``range``, ``hash`` or ``robin``."""
    parts: tuple[PartReceipt, ...] = ()
    """Of a partition: the parts in order."""
    spread: float | None = None
    """Of a partition: how much more the largest part has than the mean, as a share of it; by bytes."""
    sampled_bytes: int | None = None
    """Of a partition: bytes of the inputs that were read for the sample."""

    def __str__(self) -> str:
        # The command promises a peak, for it is all that its process does. That of a program holds what it will.
        limitless = dataclasses.replace(self, memory=dataclasses.replace(self.memory, limit_bytes=0))
        text = Object.__str__(limitless if self.memory.limit_bytes else self)
        return text.replace("\nmemory    peak ", "\nmemory    peak of the process ", 1)


@dataclass(frozen=True, kw_only=True)
class PumpEnd(Object):
    """What one end of a transfer did."""

    kind: str
    """Its kind: ``disk``, ``stream``, ``memory``, ``nothing``, ``link``."""
    host: str
    """The host that it is on; empty for the one where the command ran."""
    pid: int
    """The process that did its work."""
    peak_bytes: int
    """The peak resident memory of that process."""
    bytes: int
    """Bytes read or written here."""
    direct_bytes: int
    """Of these, bytes that bypassed the page cache."""
    cached_bytes: int
    """Of these, bytes that came from the page cache. Small files are not counted here."""
    completions: int
    """Reads or writes that completed."""
    bytes_per_completion: float
    """Bytes of each, on average."""
    waited_seconds: float
    """Seconds, summed over the lanes, spent waiting for this end."""
    cpu_seconds: float
    """CPU seconds of this end, user and system."""
    clocks_per_byte: float | None
    """Clocks of a core for each byte, if the kernel reports its frequency."""


@dataclass(frozen=True, kw_only=True)
class PumpLink(Object):
    """The traffic of the links of a transfer between two processes."""

    route: str
    """The route of the data: ``direct``, or ``through ssh``."""
    sealed: bool
    """Whether payloads were encrypted, if only by ssh. They always are today; receipts of versions before 0.2
    may say otherwise."""
    sent_bytes: int
    """Bytes that the source sent, with headers of frames, without TLS records and headers of packets."""
    received_bytes: int
    """Bytes that the sink received."""
    completions: int
    """Receives that completed at the sink."""
    bytes_per_completion: float
    """Bytes of each, on average."""


@dataclass(frozen=True, kw_only=True)
class LeftOut(Object):
    """An entry that a transfer left out because of an error."""

    path: str
    """Its path: at the destination if that could not take it, otherwise at the source."""
    kind: str
    """``unreadable``, ``vanished``, ``changed``, or ``destination`` if that could not take it."""
    why: str
    """The error: one line, with the path."""


@dataclass(frozen=True, kw_only=True)
class PumpItem(Object):
    """An entry that a dry run of a transfer would change."""

    change: str
    """``new``, ``changed``, ``attributes`` or ``deleted``."""
    path: str
    """Its path in the transfer, with a slash at its end if it is a directory."""


@dataclass(frozen=True, kw_only=True)
class PumpReceipt(Object):
    """What a transfer did. It succeeded only if ``holds``, and is complete only if ``left_out`` is 0."""

    verb: str
    """``pump``."""
    files: int
    """Files that were moved."""
    bytes: int
    """Bytes of these files, including holes and what an earlier run had moved."""
    directories: int
    """Directories."""
    links: int
    """Symbolic links."""
    hard_links: int
    """Further names of files that were moved."""
    special: int
    """Pipes, sockets and devices, which were skipped."""
    checksum_in: Checksum
    """The checksum of what was read."""
    checksum_out: Checksum
    """The checksum of what was passed to the write."""
    proved: bool
    """Whether checksums were taken."""
    verified: bool
    """Whether the output was read back and had the same checksums."""
    checksum_left_out: Checksum
    """The checksum of what was read and arrived, but could not be stored."""
    found: int
    """Entries that were found at the source. One that could not be looked at counts as one."""
    left_out: int
    """Of these, the ones that were left out because of an error."""
    errors: tuple[LeftOut, ...]
    """The first of these, in no particular order, as many as fit in 64 MiB of memory."""
    changed_directories: int
    """Directories in which names came or went while they were read."""
    excluded: int
    """Entries of the source that rules exclude; one for a directory with everything in it."""
    deleted: int
    """Entries of the destination that were deleted, because the source does not have them."""
    not_deleted: int
    """Entries that were to be deleted, but would have been too many."""
    skipped: int
    """Entries that were skipped because the destination has newer ones, or none."""
    not_kept: int
    """Extended attributes, access control lists among them, that could not be read or that the destination cannot keep."""
    not_kept_first: tuple[str, ...]
    """The first of them, in no particular order: a path in the transfer and names."""
    dry_run: bool
    """Whether nothing was changed; the numbers are then those of what would be."""
    items: tuple[PumpItem, ...]
    """What a dry run would change, in no particular order, as much as fits in 64 MiB of memory."""
    holds: bool
    """Whether the invariant holds: out + left out = in, for checksums and for the number of entries."""
    seconds: float
    """Wall-clock seconds."""
    sync_seconds: float
    """Of these, the seconds to make names and bytes durable at the end."""
    cpu_seconds: float
    """CPU seconds of the whole process, user and system."""
    clock_hz: float | None
    """Clocks of a core in a second, if the kernel reports it."""
    streams: int
    """Lanes."""
    source: PumpEnd
    """The end that was read."""
    dest: PumpEnd
    """The end that was written."""
    onward: tuple[PumpEnd, ...]
    """Further ends that were written: hosts of a chain, in its order. Each has sent on to the next what it received."""
    limited_seconds: float
    """Seconds, summed over the lanes, spent waiting for ``limit``."""
    bottleneck: str
    """What the lanes spent most of their time on, and the share of it."""
    link: PumpLink | None
    """The traffic of the links between two processes, if there were two."""
    backend: str
    """``uring`` or ``threads``."""
    fallback: str | None
    """Why another back end was used than requested or expected, if so."""
    memory: MemoryReceipt
    """The memory used. ``limit_bytes`` is the limit for blocks."""
    resumed_files: int
    """Files that an earlier run had moved."""
    resumed_bytes: int
    """Bytes that an earlier run had moved."""


@dataclass(frozen=True, kw_only=True)
class NodeRates(Object):
    """The rates of one node."""

    hardware: Hardware
    """Its disk and its cores."""
    memory_bytes: int
    """Memory that was available at the time."""
    send_bytes_per_second: float
    """Bytes per second that it sends to another node while it receives as much; 0 if there was no other."""
    receive_bytes_per_second: float
    """Bytes per second that it receives while it sends as much; 0 if there was no other."""
    trunk_bytes_per_second: float | None
    """Bytes per second between the first half of the hosts and the others, each way, if that is less than
    what all their links carry."""


@dataclass(frozen=True, kw_only=True)
class NodePlan(Object):
    """What one node of several will do."""

    host: str
    """The host."""
    role: str
    """Its role."""
    rates: NodeRates
    """Its rates."""
    read_bytes: int
    """Bytes of the inputs that it reads."""
    range_bytes: int
    """Bytes of its range."""
    memory_bytes: int
    """Memory of its part of the job."""
    spilled_bytes: int
    """Bytes of its range that do not fit in memory."""


@dataclass(frozen=True, kw_only=True)
class ClusterStage(Object):
    """One stage of a sort on several nodes."""

    name: str
    """The stage's name; the receipt uses the same."""
    read_bytes: int
    """Bytes that all disks read."""
    crossing_bytes: int
    """Bytes that are sent between nodes."""
    written_bytes: int
    """Bytes that all disks write."""
    seconds: float
    """The expected seconds."""
    bottleneck: str
    """What limits it: ``n3's disk``, ``all disks``, ``all links``, ``trunk`` and so on."""


@dataclass(frozen=True, kw_only=True)
class ClusterPlan(Object):
    """What a sort on several nodes will do."""

    nodes: tuple[NodePlan, ...]
    """One for each node, in the order of their ranges."""
    rates_from: str
    """Where their rates come from."""
    input_bytes: int
    """Input bytes of all nodes."""
    record_bytes: int
    """Bytes of a record; for lines, an estimate."""
    passes: int
    """How many times each byte that does not fit is read: 1 if all fits."""
    trunk_bytes_per_second: float | None
    """Bytes per second between the halves of the hosts, if that is less than what their links carry."""
    stages: tuple[ClusterStage, ...]
    """Stages in order, with the names that the receipt uses."""
    seconds: float
    """Seconds of all stages."""
    bottleneck: str
    """The stage that takes most of the time, and what limits it."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck(Object):
    """The result of ``check`` for the files of one node."""

    host: str
    """The host."""
    from_: int
    """The index of its first record in the whole sequence."""
    proof: Proof
    """Proof of its files."""


@dataclass(frozen=True, kw_only=True)
class Check(Object):
    """The result of ``check`` for files that form one sorted sequence. It is true if they do: ``if check(...)``."""

    proof: Proof
    """Proof of all files, in the order given."""
    crc_sum: Checksum
    """Sum of the CRC-32 of each record, as the Sort Benchmark's validator computes it."""
    first_unordered: int | None
    """Index of the first record that is smaller than the one before it."""
    ordered: bool
    """Whether all records are in order."""
    grown: GrownInputs | None = None
    """The files that grew while they were read, if any did."""
    nodes: tuple[NodeCheck, ...] = ()
    """The result of each node, in order, if the files are on nodes."""
    seconds: float
    """Wall-clock seconds."""

    def __bool__(self) -> bool:
        return self.ordered

    def _title(self) -> str:
        return f"{counted(self.proof.records, 'record')}, {'in order' if self.ordered else 'not in order'}"


@dataclass(frozen=True, kw_only=True)
class Finding(Object):
    """A finding of ``doctor``."""

    name: str
    """The subject: ``io_uring``, ``direct I/O``, ``open files``, ..."""
    verdict: str
    """The severity."""
    seen: str
    """The observation, with numbers."""
    remedy: str
    """The remedy; empty if it is good."""


@dataclass(frozen=True, kw_only=True)
class DoctorReport(Object):
    """The findings about a machine."""

    findings: tuple[Finding, ...]
    """One finding for each subject."""

    def _title(self) -> str:
        return str(self).rpartition("\n")[2]


@dataclass(frozen=True, kw_only=True)
class Detached(Object):
    """A job that continues without its client."""

    job: str
    """The job's id."""
    coordinator: str
    """The host whose node coordinates it."""
