"""Rivers: records on their way from several threads to several others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, TypeAlias

from thalweg import _native
from thalweg._names import Bytes, Size, whole
from thalweg.errors import UsageError

ENDS_MAX = 1024
"""The most inlets of a river, and the most outlets."""

Pick: TypeAlias = Literal["robin", "hash", "copy", "least-busy"] | Callable[[list[bytes]], Sequence[int]]
"""Which outlet a record goes to: in turn, by a hash of its key, to all, to the one that is
free soonest, or as a function says that gets a list of records and returns the number of an outlet for each. The
function may not use an inlet."""


class River:
    """Carries records from ``inlets`` to ``outlets``, each of which one thread uses. There are at most 1024 of each.

    ``record``, ``prefixed`` and ``by`` say how records lie in what is put, and what their key is, as for
    :func:`thalweg.sort`. The memory of a river is bounded: an inlet has room for 512 KiB for each outlet, and then waits
    until its outlets are read. So one thread may put and finish a little before it takes:

    >>> import thalweg
    >>> river = thalweg.River(inlets=1, outlets=2, pick=lambda lines: [len(line) % 2 for line in lines])
    >>> with river.inlets[0] as inlet:
    ...     inlet.put(b"a\\nbb\\nccc\\n")
    >>> [b"".join(outlet) for outlet in river.outlets]
    [b'bb\\n', b'a\\nccc\\n']

    Raises :class:`thalweg.RiverError` where the only thread of a program would wait for ever.
    """

    def __init__(
        self,
        inlets: int = 1,
        outlets: int = 1,
        *,
        pick: Pick = "robin",
        record: Size | None = None,
        prefixed: bool = False,
        by: str | Iterable[str] | None = None,
    ) -> None:
        records: dict[str, object] = {"record": record, "prefixed": prefixed, "by": by}
        for what, count in (("inlets", inlets), ("outlets", outlets)):
            if whole(what, count) > ENDS_MAX:
                raise UsageError(f"{what}={count}: a river has at most {ENDS_MAX}")
        natives = _native.river(records, inlets, outlets, pick)
        self.inlets = [Inlet(native) for native in natives[0]]
        """One for each source."""
        self.outlets = [Outlet(native) for native in natives[1]]
        """One for each sink."""


class Inlet:
    """The end into which one thread puts records. As a context it is finished at its end, and given up by an
    error."""

    def __init__(self, native: _native.Inlet) -> None:
        self._native = native

    def put(self, records: Bytes) -> None:
        """Puts the next bytes: anything with the buffer protocol. Records may be cut anywhere. Waits for slow
        outlets.

        Raises :class:`thalweg.OutletGone` if an outlet was closed.
        """
        self._native.put(records)

    def finish(self) -> None:
        """Says that this was all. Outlets end when all inlets have said so."""
        self._native.finish()

    def close(self) -> None:
        """Gives up, unless it is finished: the outlets end with an error."""
        self._native.close()

    def __enter__(self) -> Inlet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        if why is None:
            self.finish()
        else:
            self.close()


class Outlet(Iterator[bytes]):
    """The end from which one thread takes batches of whole records. The end is only reached when everything that
    was put has come."""

    def __init__(self, native: _native.Outlet) -> None:
        self._native = native

    def __next__(self) -> bytes:
        return next(self._native)

    def close(self) -> None:
        """Takes no more: the inlets end with an error."""
        self._native.close()
