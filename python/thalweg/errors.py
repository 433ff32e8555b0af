"""What can go wrong, as one tree of exceptions.

Each class below :class:`Error` is an enum of the Rust library or one of its variants; the evidence of a variant is in
attributes. The message is one line: what, where, how much, and the remedy where there is one. Bytes are counted in
integers, and paths are :class:`pathlib.Path`.

>>> import thalweg
>>> try:
...     thalweg.sort("/does/not/exist", "sorted")
... except thalweg.FileError as why:
...     print(why.errno, why.filename, isinstance(why, OSError))
2 /does/not/exist True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from thalweg.executed import Executed


class Error(Exception):
    """Why a call did not succeed. No output has its name then."""

    def __reduce__(self) -> tuple[type[Error], tuple[object, ...], dict[str, object]]:
        # An OSError does not copy what was not among its arguments, and these classes have one: the message.
        of_system = {name: getattr(self, name, None) for name in ("errno", "strerror", "filename")}
        evidence = {name: value for name, value in of_system.items() if value is not None}
        return type(self), self.args, {**self.__dict__, **evidence}


class ForkedError(Error):
    """Process ``parent`` has used the package, and now its fork ``child`` does; use it first after the fork, or start
    processes by spawn."""

    parent: int
    child: int


class Interrupted(Error):
    """A signal stopped the call; leftovers are removed."""

    signal: int


class Cancelled(Error):
    """Another thread stopped the call, by its :class:`thalweg.Cancel`; leftovers are removed."""


class UsageError(Error, ValueError):
    """It cannot be done as it was asked. Nothing was touched."""


class BadPath(UsageError):
    """``path`` cannot be used as it was asked."""

    path: Path


class TooLittleMemory(UsageError):
    """Memory of ``given`` bytes is too small; ``needed`` bytes would do, where that is known."""

    given: int
    needed: int | None


class KeyOutside(UsageError):
    """A part of the key reaches past the end of a record of ``record_bytes`` bytes."""

    offset: int
    length: int
    record_bytes: int


class OpenFiles(UsageError):
    """So many ``parts`` take ``needed`` open files, and ``limit`` are allowed."""

    parts: int
    needed: int
    limit: int


class SameOutput(UsageError):
    """Another node writes the same output."""

    path: Path


class FileError(Error, OSError):
    """The system refused to ``action`` a file: :attr:`errno` and :attr:`filename` are as for any :class:`OSError`."""

    action: str
    offset: int | None

    def __str__(self) -> str:
        return str(self.args[0])


class FileNotFound(FileError, FileNotFoundError):
    """There is no file of that name."""


class PermissionDenied(FileError, PermissionError):
    """The user may not do this with the file."""


class InputError(Error):
    """An input cannot be read, or is not what it should be."""


class Ragged(InputError):
    """The size of a file is no multiple of the record."""

    path: str
    bytes: int
    record_bytes: int


class CutOff(InputError):
    """A file ends inside the record at byte ``at``, of which ``bytes`` bytes are there."""

    path: str
    at: int
    bytes: int


class CutShort(InputError):
    """A file ends after ``bytes`` bytes of a record."""

    path: Path
    bytes: int


class RecordTooLong(InputError):
    """The record at byte ``at`` is longer than ``limit`` bytes, the most that there is room for."""

    path: Path | None
    at: int | None
    limit: int


class BadSummary(InputError):
    """What a check is to add up is not a summary, from byte ``at`` on."""

    path: Path
    at: int


class OutputFull(Error):
    """There is no room for the output, which takes ``needed`` bytes."""

    path: Path
    needed: int
    available: int | None


class SomeParts(Error):
    """Only ``named`` of ``all`` parts of a partition have their names, from ``first`` to ``last``."""

    first: Path
    last: Path
    named: int
    all: int


class SortError(Error):
    """A sort failed. Its inputs are unchanged."""


class ScratchFull(SortError):
    """There is not enough scratch space: ``needed`` bytes, of which ``available`` are there."""

    needed: int
    available: int
    limit: int | None
    directories: list[Path]
    resumable: bool


class ScratchDamaged(SortError):
    """``bytes`` bytes of a scratch file at byte ``at`` are not what was written."""

    path: Path
    at: int
    bytes: int


class SortMismatch(SortError):
    """The output is not the input in order: records ``read`` and ``written``."""

    read: int
    written: int


class OutputBusy(SortError):
    """Another process is writing the same output, at ``path``."""

    path: Path


class PutCutShort(SortError):
    """What was put into a sorter ends inside a record."""

    bytes: int
    record_bytes: int


class BlocksHeld(SortError):
    """The program holds as many blocks of a sorter as there is room for; drop some, or copy what is to stay."""


class MergeError(Error):
    """A merge or a join failed."""


class Unordered(MergeError):
    """An input is not in order: ``record``, counted from 0, is less than the one before it."""

    path: Path
    record: int


class MergeMismatch(MergeError):
    """The output of a merge is not its inputs in order. All four count records."""

    read: int
    written: int
    dropped: int
    unordered: int


class JoinMismatch(MergeError):
    """The output of a join is not what its inputs promise. All three count records."""

    promised: int
    came: int
    records: int


class RiverError(Error):
    """A river failed."""


class OutletGone(RiverError):
    """An outlet was closed before the river's end."""

    outlet: int


class NoOutlet(RiverError):
    """A function picked an outlet that does not exist."""

    picked: int
    outlets: int


class TransferError(Error):
    """A transfer failed. What has arrived stays for the same transfer with ``resume``."""


class Corrupted(TransferError):
    """A file that was written has another checksum than what was read."""

    path: Path
    read: int
    written: int
    read_back: bool


class Changed(TransferError):
    """A source changed while it was read."""

    path: Path


class PeerFailed(TransferError):
    """The process at the other end, on ``host``, failed."""

    host: str
    why: str


class VolumeError(Error, OSError):
    """A volume could not be used; :attr:`errno` is what a file system would answer, and :attr:`filename` a path in the
    volume, where the error is about one."""

    def __str__(self) -> str:
        return str(self.args[0])


class VolumeFailed(VolumeError):
    """Bytes of a file of a volume could not be read or written, from byte ``at`` on."""

    path: Path
    at: int


class VolumeNotFound(VolumeError, FileNotFoundError):
    """There is nothing of that name in the volume, or no volume of that name."""


class VolumeExists(VolumeError, FileExistsError):
    """There is something of that name in the volume already."""


class TableError(Error):
    """A table could not be used."""


class TableFull(TableError):
    """The memory for the records of a table is full."""


class UncertainChange(TableError):
    """A change of a table may have been made, or not: no node answered in time. A later read shows which."""


class DuplicateKey(TableError):
    """Two records of a load have the key ``key``."""

    key: str


class ClusterError(Error):
    """A cluster or an identity could not be used."""


class NoIdentity(ClusterError):
    """There is no cluster file in the directory ``path``."""

    path: Path


class UnknownHost(ClusterError):
    """The cluster has no host of this name."""

    host: str
    cluster: str
    hosts: list[str]


class LinkError(ClusterError):
    """A link with a node broke or was refused."""


class NodeError(ClusterError):
    """A node could not be asked, or failed; the message says how."""


class CommandFailed(NodeError):
    """A command did not end with status 0 on every host: ``executed`` is what it did on each."""

    executed: Executed


class UnknownJob(NodeError):
    """No host knows this job."""

    job: str


class JobError(Error):
    """A job on several nodes failed."""


class DifferentInputs(JobError):
    """Two nodes see different files under the same names."""

    first: str
    second: str


class Unreached(JobError):
    """Hosts cannot be reached: a line for each."""

    lines: list[str]


class AttemptsFailed(JobError):
    """The last of ``max`` attempts of a job failed, too."""

    last: str
    max: int


class NotNamed(JobError):
    """An output did not get its name ``path``; it is whole, at ``hidden``."""

    path: Path
    hidden: Path


class RayError(ClusterError):
    """A cluster that Ray hosts could not be made or found."""


class NotEnoughResources(RayError):
    """Ray has not enough machines for ``nodes`` nodes: of its ``machines``, ``large`` are large enough."""

    nodes: int
    machines: int
    large: int
