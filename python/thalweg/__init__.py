"""Move, sort and prove record data at the speed of the hardware.

The functions are the verbs of the ``thalweg`` command, with the same names, defaults and names of files:

>>> import thalweg
>>> _ = thalweg.gen("10k", "records")
>>> receipt = thalweg.sort("records", "sorted", datamation=True, memory="64MiB")
>>> print(receipt)  # doctest: +ELLIPSIS
sorted 10 000 records, 1 000 000 bytes, in ...
>>> thalweg.check("sorted", datamation=True).ordered
True

:class:`Sorter` sorts records of the program, :class:`River` carries them between threads, :class:`Cluster` is where
the work may be done, :class:`Table` ordered records in memory, :class:`Volume` a file system over several disks or
hosts. All errors are :class:`Error`.

Importing the package changes nothing of the process. Its functions work in any thread, and let others run
meanwhile. They do not work in a fork of a process that has used them: use them first after the fork, or start processes
by spawn.
"""

from typing import TYPE_CHECKING

from thalweg._native import __version__
from thalweg.errors import (
    AttemptsFailed,
    BadPath,
    BadSummary,
    BlocksHeld,
    Cancelled,
    Changed,
    ClusterError,
    CommandFailed,
    Corrupted,
    CutOff,
    CutShort,
    DifferentInputs,
    DuplicateKey,
    Error,
    FileError,
    FileNotFound,
    ForkedError,
    InputError,
    Interrupted,
    JobError,
    JoinMismatch,
    KeyOutside,
    LinkError,
    MergeError,
    MergeMismatch,
    NodeError,
    NoIdentity,
    NoOutlet,
    NotEnoughResources,
    NotNamed,
    OpenFiles,
    OutletGone,
    OutputBusy,
    OutputFull,
    PeerFailed,
    PermissionDenied,
    PutCutShort,
    Ragged,
    RayError,
    RecordTooLong,
    RiverError,
    SameOutput,
    ScratchDamaged,
    ScratchFull,
    SomeParts,
    SortError,
    SortMismatch,
    TableError,
    TableFull,
    TooLittleMemory,
    TransferError,
    UncertainChange,
    UnknownHost,
    UnknownJob,
    Unordered,
    Unreached,
    UsageError,
    VolumeError,
    VolumeExists,
    VolumeFailed,
    VolumeNotFound,
)

if TYPE_CHECKING:
    from thalweg._names import Name, Size
    from thalweg._progress import Cancel, Progress
    from thalweg.cluster import Cluster
    from thalweg.executed import Executed, HostOutput
    from thalweg.reports import ClusterReport, ExecReport, JobList
    from thalweg.results import (
        Check,
        ClusterPlan,
        Detached,
        DoctorReport,
        LeftOut,
        Plan,
        PumpItem,
        PumpReceipt,
        Receipt,
    )
    from thalweg.river import Inlet, Outlet, Pick, River
    from thalweg.sorter import Sorted, Sorter
    from thalweg.table import Table
    from thalweg.verbs import check, detach, doctor, gen, join, merge, partition, plan, pump, shuffle, sort
    from thalweg.volume import Stat, Volume

# The modules of these names are imported when the first of them is used: dataclasses alone take 15 ms.
_HOMES = {
    "Cancel": "_progress",
    "Progress": "_progress",
    "Name": "_names",
    "Size": "_names",
    "Cluster": "cluster",
    "Check": "results",
    "ClusterPlan": "results",
    "ClusterReport": "reports",
    "Detached": "results",
    "DoctorReport": "results",
    "ExecReport": "reports",
    "Executed": "executed",
    "HostOutput": "executed",
    "JobList": "reports",
    "LeftOut": "results",
    "Plan": "results",
    "PumpItem": "results",
    "PumpReceipt": "results",
    "Receipt": "results",
    "Inlet": "river",
    "Outlet": "river",
    "Pick": "river",
    "River": "river",
    "Sorted": "sorter",
    "Sorter": "sorter",
    "Table": "table",
    "check": "verbs",
    "detach": "verbs",
    "doctor": "verbs",
    "gen": "verbs",
    "join": "verbs",
    "merge": "verbs",
    "partition": "verbs",
    "plan": "verbs",
    "pump": "verbs",
    "shuffle": "verbs",
    "sort": "verbs",
    "Stat": "volume",
    "Volume": "volume",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'thalweg' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"thalweg.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AttemptsFailed",
    "BadPath",
    "BadSummary",
    "BlocksHeld",
    "Cancel",
    "Cancelled",
    "Changed",
    "Check",
    "Cluster",
    "ClusterError",
    "ClusterPlan",
    "ClusterReport",
    "CommandFailed",
    "Corrupted",
    "CutOff",
    "CutShort",
    "Detached",
    "DifferentInputs",
    "DoctorReport",
    "DuplicateKey",
    "Error",
    "ExecReport",
    "Executed",
    "FileError",
    "FileNotFound",
    "ForkedError",
    "HostOutput",
    "Inlet",
    "InputError",
    "Interrupted",
    "JobError",
    "JobList",
    "JoinMismatch",
    "KeyOutside",
    "LeftOut",
    "LinkError",
    "MergeError",
    "MergeMismatch",
    "Name",
    "NoIdentity",
    "NoOutlet",
    "NodeError",
    "NotEnoughResources",
    "NotNamed",
    "OpenFiles",
    "Outlet",
    "OutletGone",
    "OutputBusy",
    "OutputFull",
    "PeerFailed",
    "PermissionDenied",
    "Pick",
    "Plan",
    "Progress",
    "PumpItem",
    "PumpReceipt",
    "PutCutShort",
    "Ragged",
    "RayError",
    "Receipt",
    "RecordTooLong",
    "River",
    "RiverError",
    "SameOutput",
    "ScratchDamaged",
    "ScratchFull",
    "Size",
    "SomeParts",
    "SortError",
    "SortMismatch",
    "Sorted",
    "Sorter",
    "Stat",
    "Table",
    "TableError",
    "TableFull",
    "TooLittleMemory",
    "TransferError",
    "UncertainChange",
    "UnknownHost",
    "UnknownJob",
    "Unordered",
    "Unreached",
    "UsageError",
    "Volume",
    "VolumeError",
    "VolumeExists",
    "VolumeFailed",
    "VolumeNotFound",
    "__version__",
    "check",
    "detach",
    "doctor",
    "gen",
    "join",
    "merge",
    "partition",
    "plan",
    "pump",
    "shuffle",
    "sort",
]
