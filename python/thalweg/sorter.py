"""Sorting records that a program has, rather than a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from thalweg import _native
from thalweg._objects import made
from thalweg._words import Bytes, Name, Option, Size, words
from thalweg.results import Receipt


class Sorter:
    """Sorts records of any number in the memory that it is given: first they are put, then taken in order.

    The keywords are those of :func:`thalweg.sort`. ``memory`` is for the sorter alone: at least 16 MiB; half of
    what is free, at most 1 GiB, if it is not given. What does not fit goes to the directories ``scratch``, or to
    that of temporary files. Leaving the ``with`` block stops a sort that runs, gives its memory back and removes
    its scratch.

    >>> import thalweg
    >>> with thalweg.Sorter(record=4, memory="16MiB") as sorter:
    ...     sorter.put(b"pearkiwi")
    ...     sorter.put(b"plumfig!")
    ...     for block in sorter.sorted():
    ...         bytes(block)
    b'fig!kiwipearplum'
    """

    def __init__(
        self,
        *,
        record: Size | None = None,
        prefixed: bool = False,
        by: str | Iterable[str] | None = None,
        memory: Size | None = None,
        scratch: Name | Iterable[Name] = (),
        scratch_limit: Size | None = None,
        threads: int | None = None,
        unique: bool = False,
    ) -> None:
        options: dict[str, Option] = {
            "record": record,
            "prefixed": prefixed,
            "by": by,
            "memory": memory,
            "scratch": scratch,
            "scratch_limit": scratch_limit,
            "threads": threads,
            "unique": unique,
            "output": "-",
        }
        self._sorter = _native.Sorter(words("sort", (), options))
        self._sorted: Sorted | None = None

    def put(self, records: Bytes) -> None:
        """Puts the next bytes: anything with the buffer protocol, as ``bytes``, a numpy array or a
        ``pyarrow.Buffer``.

        They are copied once, into the sorter's memory. Records may be cut anywhere. Waits while memory is full.
        """
        self._sorter.put(records)

    def sorted(self) -> Sorted:
        """Ends the input and gives the sorted records.

        Raises :class:`thalweg.PutCutShort` if the input ended inside a record.
        """
        self._sorted = Sorted(self._sorter.sorted())
        return self._sorted

    def close(self) -> None:
        """Stops, gives the memory back and removes the scratch. Blocks that the program holds stay readable."""
        self._sorter.close()
        if self._sorted is not None:
            self._sorted.close()

    def __enter__(self) -> Sorter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sorted(Iterator[memoryview]):
    """The sorted records of a :class:`Sorter`, in blocks of whole records that are read in place.

    Each is a view that is read-only: ``numpy.frombuffer(block, dtype="S8")`` does not copy it, ``bytes(block)``
    does. A program may hold 8 blocks at once, and copies what is to stay.

    Raises :class:`thalweg.BlocksHeld` if it holds more. The end is only reached when the output is proved to be the
    input.
    """

    def __init__(self, native: _native.Sorted) -> None:
        self._native = native

    def __next__(self) -> memoryview:
        return next(self._native)

    def receipt(self) -> Receipt:
        """What the sort did, when all blocks were taken. Peak memory in it is that of the whole process."""
        return made(Receipt, self._native.receipt())

    def close(self) -> None:
        """Stops the sort, if it runs."""
        self._native.close()
