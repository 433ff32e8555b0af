"""Sorting records that a program has, rather than a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, overload

from thalweg import _native
from thalweg._names import Bytes, Name, Size
from thalweg._objects import made
from thalweg.results import Receipt

RECORDS_TOGETHER = 1024
"""Records that :meth:`Sorter.extend` puts at a time."""

_Block = TypeVar("_Block", bytes, memoryview)


class Sorter:
    """Sorts records of any number in the memory that it is given: first they are put, then taken in order.

    The keywords are those of :func:`thalweg.sort`. ``memory`` is for the sorter alone: at least 16 MiB; half of
    what is free, at most 1 GiB, if it is not given. What does not fit goes to the directories ``scratch``, or to
    that of temporary files. Leaving the ``with`` block stops a sort that runs, gives its memory back and removes
    its scratch.

    >>> import thalweg
    >>> with thalweg.Sorter(memory="16MiB") as sorter:
    ...     sorter.put(b"pear\\nkiwi\\n")
    ...     sorter.extend([b"plum", b"fig"])
    ...     list(sorter.sorted().records())
    [b'fig', b'kiwi', b'pear', b'plum']
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
        options = dict(locals())
        del options["self"]
        self._sorter = _native.Sorter(options)
        self._sorted: Sorted[Any] | None = None

    def put(self, records: Bytes) -> None:
        """Puts the next bytes: anything with the buffer protocol, as ``bytes``, a numpy array or a
        ``pyarrow.Buffer``.

        They are copied once, into the sorter's memory. Records may be cut anywhere. Waits while memory is full.
        """
        self._sorter.put(records)

    def extend(self, records: Iterable[Bytes]) -> None:
        """Puts records that are each by itself: lines without their newlines, prefixed records without their prefixes.

        What ``records`` gave before it failed is put, as with ``list.extend``.

        Raises :class:`thalweg.UsageError` if a line has a newline in it, or a record has another length than all.
        """
        if isinstance(records, (bytes, bytearray, memoryview)):
            raise TypeError("records: give an iterable of records; put() takes the bytes of several")
        rest = iter(records)
        while True:
            some: list[Bytes] = []
            try:
                some.extend(islice(rest, RECORDS_TOGETHER))
            finally:
                if some:
                    self._sorter.put_records(some)
            if not some:
                return

    @overload
    def sorted(self, *, views: Literal[False] = False) -> Sorted[bytes]: ...
    @overload
    def sorted(self, *, views: Literal[True]) -> Sorted[memoryview]: ...
    def sorted(self, *, views: bool = False) -> Sorted[Any]:
        """Ends the input and gives the sorted records: in blocks, or one by one with :meth:`Sorted.records`.

        Blocks are copies, of up to a few MiB. With ``views`` they are read in place, and a program may hold at most 8
        of them at once.

        Raises :class:`thalweg.PutCutShort` if the input ended inside a record.
        """
        self._sorted = Sorted(self._sorter.sorted(), views=views)
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


class Sorted(Iterator[_Block], Generic[_Block]):
    """The sorted records of a :class:`Sorter`, in blocks of whole records.

    ``numpy.frombuffer(block, dtype="S8")`` reads the records of a block. A view, if views were asked for, is read-only
    and in the sorter's memory.

    Raises :class:`thalweg.BlocksHeld` if the program holds more than 8 views. The end is only reached when the output
    is proved to be the input.
    """

    def __init__(self, native: _native.Sorted, *, views: bool) -> None:
        self._native = native
        self._take: Any = memoryview if views else bytes

    def __next__(self) -> _Block:
        return self._take(next(self._native))

    def records(self) -> Iterator[bytes]:
        """The records that have not been taken, one by one: lines without their newlines, prefixed records without
        their prefixes."""
        while (records := self._native.records()) is not None:
            yield from records

    def receipt(self) -> Receipt:
        """What the sort did, when all records were taken. Peak memory in it is that of the whole process."""
        return made(Receipt, self._native.receipt())

    def close(self) -> None:
        """Stops the sort, if it runs."""
        self._native.close()
