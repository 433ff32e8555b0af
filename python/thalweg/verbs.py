"""The verbs: each is the command of its name, with its flags as keywords.

Files are named as for the command; see :data:`thalweg.Name`. Every call ends within a second of Ctrl-C, or when another
thread calls ``cancel`` of the :class:`thalweg.Cancel` that it was given, and then leaves what a cancelled command
leaves: inputs and older outputs as they were. Calls in several threads run side by
side, each with its own memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from thalweg._names import Name, Size, input_name, names, output_name, path, some_names, text
from thalweg._objects import made
from thalweg._progress import Cancel, Progress, call
from thalweg.cluster import Cluster
from thalweg.results import (
    Check,
    ClusterPlan,
    Detached,
    DoctorReport,
    Plan,
    PumpReceipt,
    Receipt,
)

Io: TypeAlias = Literal["auto", "uring", "threads"]
"""How to read and write."""


def _cluster(given: object) -> Cluster:
    """A cluster that is given by itself or by its name."""
    return given if isinstance(given, Cluster) else Cluster(path("cluster", given))


def _done(verb: str, words: list[str], given: dict[str, Any]) -> str:
    """What the verb returns, as JSON. ``given`` are the keywords of the call, which the table of options reads."""
    cluster, on = given.pop("cluster", None), names(given.pop("on", ()), "on")
    progress, cancel = given.pop("progress", False), given.pop("cancel", None)
    if cluster is not None:
        asked = _cluster(cluster).options()
        given["identity"] = asked["identity"] if given.get("identity") is None else given["identity"]
        given["cluster"], on = asked["cluster"], on or asked["on"]
    if on:
        given["on"] = on
    return call(verb, words, given, progress, cancel)


def _work(verb: str, given: dict[str, Any]) -> Receipt:
    """The receipt of a verb from ``inputs`` to ``output``."""
    inputs, output = some_names(given.pop("inputs")), output_name(given.pop("output"))
    return made(Receipt, _done(verb, inputs, {**given, "output": output}))


def sort(
    inputs: Name | Iterable[Name],
    output: Name,
    *,
    record: Size | None = None,
    prefixed: bool = False,
    header: int | None = None,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    memory: Size | None = None,
    scratch: Name | Iterable[Name] = (),
    scratch_limit: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    unique: bool = False,
    resume: bool = False,
    no_proof: bool = False,
    nodes: int | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Sorts files of any size in any memory, and proves it. Records with equal keys stay in the order of the inputs.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its length
    in four bytes, little-endian. With ``header=N`` the first N lines of each input, which must be the same in all, stay
    in front of the output, once. ``by="OFFSET:LENGTH[:desc],..."`` is the key, otherwise the whole record. ``memory``
    is for this call alone, whatever else the process holds: at least 16 MiB, half of what is free if it is not given.
    The peak in the receipt is that of the whole process. What does not fit goes to the directories ``scratch``. With
    ``unique`` only the first of records with equal keys stays; with ``resume`` it continues from what an earlier run
    left.

    Raises :class:`thalweg.UsageError` if it cannot be done as asked, :class:`thalweg.SortError` and others of
    :class:`thalweg.Error` otherwise.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("fruit").write_text("pear\\nfig\\napple\\n")
    >>> receipt = thalweg.sort("fruit", "sorted")
    >>> receipt.output.records, receipt.holds, pathlib.Path("sorted").read_text()
    (3, True, 'apple\\nfig\\npear\\n')
    """
    return _work("sort", dict(locals()))


def shuffle(
    inputs: Name | Iterable[Name],
    output: Name,
    *,
    seed: int,
    record: Size | None = None,
    prefixed: bool = False,
    header: int | None = None,
    memory: Size | None = None,
    scratch: Name | Iterable[Name] = (),
    scratch_limit: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    nodes: int | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Puts records in random order, which is the same for the same ``seed``, any number of 64 bits, and inputs.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its
    length in four bytes, little-endian. With ``header=N`` the first N lines of each input, which must be the same in
    all, stay in front of the output, once.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("ten").write_text("".join(f"{i}\\n" for i in range(10)))
    >>> thalweg.shuffle("ten", "mixed", seed=1).output.records
    10
    """
    return _work("shuffle", dict(locals()))


def merge(
    inputs: Name | Iterable[Name],
    output: Name,
    *,
    record: Size | None = None,
    prefixed: bool = False,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    memory: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    unique: bool = False,
    nodes: int | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Merges files that are in order.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its
    length in four bytes, little-endian. ``by="OFFSET:LENGTH[:desc],..."`` is the key, otherwise the whole record.

    Raises :class:`thalweg.Unordered` if an input is not in order.

    >>> import pathlib, thalweg
    >>> for name, text in ("odd", "1\\n3\\n"), ("even", "2\\n4\\n"):
    ...     _ = pathlib.Path(name).write_text(text)
    >>> _ = thalweg.merge(["odd", "even"], "all")
    >>> pathlib.Path("all").read_text().split()
    ['1', '2', '3', '4']
    """
    return _work("merge", dict(locals()))


def join(
    left: Name,
    right: Name,
    output: Name,
    *,
    record: Size | None = None,
    prefixed: bool = False,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    right_record: Size | None = None,
    right_by: str | Iterable[str] | None = None,
    type: Literal["inner", "left", "anti"] | None = None,
    between: str | None = None,
    memory: Size | None = None,
    scratch: Name | Iterable[Name] = (),
    scratch_limit: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    nodes: int | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Joins the records of two files by their keys.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its
    length in four bytes, little-endian. ``by="OFFSET:LENGTH[:desc],..."`` is the key, otherwise the whole record.
    ``right_record`` and ``right_by`` are for the right side, if it differs. ``type`` is ``inner`` if it is not
    given; ``left`` also gives records of the left side without a partner, ``anti`` only those. ``between`` stands
    between the parts of a line, a tab if it is not given.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("films").write_text("1 Suspicion\\n2 Rebecca\\n")
    >>> _ = pathlib.Path("years").write_text("1 1941\\n3 1950\\n")
    >>> _ = thalweg.join("films", "years", "joined", by="0:1")
    >>> pathlib.Path("joined").read_text()
    '1 Suspicion\\t1 1941\\n'
    """
    given = dict(locals())
    sides = [input_name(given.pop(side), side) for side in ("left", "right")]
    output = output_name(given.pop("output"))
    return made(Receipt, _done("join", sides, {**given, "output": output}))


def partition(
    inputs: Name | Iterable[Name],
    output: Name,
    *,
    parts: int,
    pick: Literal["range", "hash", "robin"] | None = None,
    split_keys: bool = False,
    record: Size | None = None,
    prefixed: bool = False,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    memory: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    nodes: int | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Distributes records over so many files; ``output`` has ``{}`` where the number of a part goes.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its
    length in four bytes, little-endian. ``by="OFFSET:LENGTH[:desc],..."`` is the key, otherwise the whole record.
    ``pick`` is ``range`` if it is not given: parts of about equal size, which follow each other in order. ``hash``
    brings equal keys into one part, ``robin`` deals one record after the other.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("words").write_text("b\\na\\nd\\nc\\n")
    >>> receipt = thalweg.partition("words", "part-{}", parts=2)
    >>> [part.records for part in receipt.parts]
    [2, 2]
    """
    return _work("partition", dict(locals()))


def check(
    files: Name | Iterable[Name],
    *,
    record: Size | None = None,
    prefixed: bool = False,
    header: int | None = None,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    summary: Name | None = None,
    merge: bool = False,
    io: Io | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Check:
    """Looks whether files are one sorted sequence, and proves what is in them. That they are not in order is no
    error.

    Records are lines; ``record=BYTES`` says that all have so many bytes, ``prefixed`` that each begins with its
    length in four bytes, little-endian. ``by="OFFSET:LENGTH[:desc],..."`` is the key, otherwise the whole record.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("names").write_text("b\\na\\n")
    >>> found = thalweg.check("names")
    >>> found.ordered, found.first_unordered, found.proof.records
    (False, 1, 2)
    """
    given = dict(locals())
    return made(Check, _done("check", some_names(given.pop("files"), "files"), given))


def gen(
    count: int | str,
    file: Name,
    *,
    ascii: bool = False,
    skewed: bool = False,
    start: int | str | None = None,
    io: Io | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> Receipt:
    """Generates records of 100 bytes, those of the Sort Benchmark. ``count`` may have a suffix, as in ``"10M"``.

    >>> import thalweg
    >>> thalweg.gen("1k", "records").output.bytes
    100000
    """
    given = dict(locals())
    words = [str(given.pop("count")), output_name(given.pop("file"), "file")]
    return made(Receipt, _done("gen", words, given))


def pump(
    sources: Name | Iterable[Name],
    dest: Name,
    *,
    streams: int | None = None,
    limit: Size | None = None,
    resume: bool = False,
    verify: bool = False,
    no_checksum: bool = False,
    strict: bool = False,
    filter: str | Iterable[str] = (),
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    delete: bool = False,
    max_delete: int | None = None,
    dry_run: bool = False,
    compare: Literal["time", "content"] | None = None,
    update: bool = False,
    existing: bool = False,
    no_xattrs: bool = False,
    files_from: Name | None = None,
    there: str | None = None,
    through_ssh: bool = False,
    ssh: str | None = None,
    io: Io | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> PumpReceipt:
    """Copies files and directories: here, between hosts of a cluster (``HOST:/PATH``), or over ssh
    (``ssh://HOST/PATH``).

    ``cluster`` is the one whose hosts are named, that of ``identity`` if it is not given.

    What cannot be copied, because it cannot be read or changes while it is read, is left out: see ``left_out`` and
    ``errors`` of the result, which is then not complete, and a :class:`UserWarning` says so. With ``strict`` the first
    such error is raised.

    ``include`` and ``exclude`` are patterns as rsync has them, and ``filter`` rules; the first that matches decides,
    those of ``filter`` before ``include``, and that before ``exclude``. ``dry_run`` changes nothing; ``items`` of the
    result are the changes that would be made.

    ``limit`` is the most bytes in a second. With ``verify`` what was written is read back before it gets its name.

    >>> import pathlib, thalweg
    >>> _ = pathlib.Path("from").write_bytes(bytes(10))
    >>> thalweg.pump("from", "to", verify=True).bytes
    10
    """
    given = dict(locals())
    if cluster is not None:
        where = _cluster(given.pop("cluster")).identity_options()
        given["identity"] = identity or where["identity"]
    ends = [*some_names(given.pop("sources"), "sources"), output_name(given.pop("dest"), "dest")]
    receipt = made(PumpReceipt, _done("pump", ends, given))
    if receipt.left_out:
        first = f": {receipt.errors[0].why}" if receipt.errors else ""
        warnings.warn(f"copied but for {receipt.left_out} of {receipt.found} entries{first}", stacklevel=2)
    return receipt


def plan(
    inputs: Name | Iterable[Name] = (),
    output: Name | None = None,
    *,
    record: Size | None = None,
    prefixed: bool = False,
    header: int | None = None,
    by: str | Iterable[str] | None = None,
    datamation: bool = False,
    memory: Size | None = None,
    scratch: Name | Iterable[Name] = (),
    scratch_limit: Size | None = None,
    threads: int | None = None,
    io: Io | None = None,
    unique: bool = False,
    resume: bool = False,
    no_proof: bool = False,
    simulate: str | None = None,
    cluster: Cluster | str | None = None,
    identity: Name | None = None,
    on: Iterable[str] = (),
    shares: Literal["planned", "equal"] | None = None,
) -> Plan | ClusterPlan:
    """Says what a sort will do and how long it takes. Runs nothing.

    The keywords are those of :func:`sort`. ``simulate="nodes=N,disk=RATE,link=RATE,..."`` plans for a cluster that
    need not exist, and takes no files.

    >>> import thalweg
    >>> plan = thalweg.plan(simulate="nodes=4,disk=2GB/s,link=10Gbit,data=1TB", record=100)
    >>> len(plan.nodes), plan.passes
    (4, 2)
    """
    given = dict(locals())
    text = _done("plan", names(given.pop("inputs"), "inputs"), given)
    # A cluster has no method: each of its nodes has one.
    return made(Plan, text) if text.startswith('{"method"') else made(ClusterPlan, text)


def doctor(*, scratch: Name | Iterable[Name] = ()) -> DoctorReport:
    """Looks at this machine, and at the directories ``scratch``: what Thalweg wants of it, and what it lacks.

    >>> import thalweg
    >>> {finding.verdict for finding in thalweg.doctor().findings} <= {"good", "weak", "missing"}
    True
    """
    return made(DoctorReport, _done("doctor", [], {"scratch": scratch}))


def detach(verb: str, inputs: Name | Iterable[Name], output: Name, **options: Any) -> Detached:
    """Has a node coordinate a job on a cluster, and does not wait for its end.

    ``verb`` is ``sort``, ``shuffle``, ``merge``, ``join`` or ``partition``; ``inputs`` of a join are both. The
    keywords are those of the verb, ``cluster`` among them. :meth:`thalweg.Cluster.jobs` lists jobs.
    """
    given = {**options, "output": output_name(output), "detach": True}
    return made(Detached, _done(text("verb", verb), some_names(inputs), given))
