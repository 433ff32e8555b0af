"""Ordered records in memory, of the program or of a cluster."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping
from typing import TYPE_CHECKING, cast, overload

from thalweg import _native
from thalweg._names import path, size, text, whole
from thalweg.cluster import Cluster
from thalweg.errors import UsageError

if TYPE_CHECKING:
    from thalweg._names import Size

RECORDS_TOGETHER = 1000
"""Records that a range reads at a time."""
MEMORY = "64MiB"
"""The memory of a table in the program, if none is given."""

VARIANTS = ("n", "c", "cu", "s")
"""How a table of a cluster finds the nodes of records."""

Key = str | bytes
"""A key or a value. Text is encoded as UTF-8; what is returned is bytes."""


class Table(MutableMapping[Key, bytes]):
    """Keys with values, in the order of the keys: a mapping of bytes to bytes.

    ``Table()`` is in the memory of the program, of which it takes at most ``memory``. ``Table("events")`` is a table of
    the user's cluster, and ``cluster`` another one: a :class:`Cluster`, the name of one, or the directory of an
    identity. ``variant`` says how it finds the nodes of records there, as ``thalweg table --variant`` does: ``"n"``,
    ``"c"``, ``"cu"`` or, for a table with an index, ``"s"``. Threads may share it. A slice is the records of a range of
    keys:

    >>> import thalweg
    >>> films = thalweg.Table()
    >>> films["film:1"], films["film:2"], films["film:3"] = b"Citizen Kane", b"The Third Man", b"Rashomon"
    >>> films["film:2"], "film:4" in films, len(films)
    (b'The Third Man', False, 3)
    >>> list(films["film:2":])
    [(b'film:2', b'The Third Man'), (b'film:3', b'Rashomon')]
    >>> [key for key, _ in films.range(descending=True, limit=2)]
    [b'film:3', b'film:2']
    >>> list(films.range(where="contains:Third"))
    [(b'film:2', b'The Third Man')]

    A range returns every record that exists while it is read, once and in order. It is not a snapshot.

    Raises :class:`thalweg.TableError`; :class:`thalweg.TableFull` if the memory is full, and on a cluster
    :class:`thalweg.UncertainChange` if no node has said whether a change was made.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        cluster: Cluster | str | os.PathLike[str] | None = None,
        memory: Size | None = None,
        variant: str = "cu",
    ) -> None:
        self.name = name
        self._cluster: str | None = None
        if name is None:
            if cluster is not None or variant != "cu":
                raise UsageError("a table of a cluster has a name: Table(NAME, cluster=...)")
            memory = MEMORY if memory is None else memory
            self._native = _native.Table.in_memory(size("memory", memory))
            return
        if variant not in VARIANTS:
            raise UsageError(f"variant is one of {', '.join(VARIANTS)}, not {variant!r}")
        if memory is not None:
            raise UsageError("memory is for a table of the program, which has no name")
        where = None if cluster is None or isinstance(cluster, Cluster) else path("cluster", cluster)
        named = cluster if isinstance(cluster, Cluster) else Cluster(where)
        self._cluster = named.name
        self._native = _native.Table.open(text("name", name), *named.where(), variant)

    def __repr__(self) -> str:
        given = [] if self.name is None else [repr(self.name)]
        given += [] if self._cluster is None else [f"cluster={self._cluster!r}"]
        return f"Table({', '.join(given)})"

    @overload
    def __getitem__(self, key: Key) -> bytes: ...
    @overload
    def __getitem__(self, key: slice) -> Iterator[tuple[bytes, bytes]]: ...
    def __getitem__(self, key: Key | slice) -> bytes | Iterator[tuple[bytes, bytes]]:
        if isinstance(key, slice):
            if key.step is not None:
                raise UsageError("a range of keys has no step; use range(descending=True) for the other order")
            return self.range(key.start, key.stop)
        value = self._native.get(_bytes(key))
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Key, value: Key) -> None:
        self._native.upsert(_bytes(key), _bytes(value))

    def __delitem__(self, key: Key) -> None:
        if not self._native.delete(_bytes(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            return self._native.get(_bytes(cast(Key, key))) is not None
        except TypeError:
            return False

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self._records(b"", None, None, False, True, None))

    def __len__(self) -> int:
        return self.count()

    if TYPE_CHECKING:
        # Text is a key that is given; a key that is returned is bytes.
        def keys(self) -> KeysView[bytes]: ...
        def items(self) -> ItemsView[bytes, bytes]: ...

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes the first record and returns it; what others change meanwhile is not lost."""
        while first := next(self.range(limit=1), None):
            if self._native.compare_and_set(*first, None):
                return first
        raise KeyError("popitem(): the table is empty")

    def clear(self) -> None:
        """Removes every record, one after the other; one that others add meanwhile may stay."""
        for key in self:
            self._native.delete(key)

    def insert(self, key: Key, value: Key) -> bool:
        """Adds a record. False if there is one with this key."""
        return self._native.insert(_bytes(key), _bytes(value))

    def replace(self, key: Key, value: Key) -> bool:
        """Replaces the value of a record. False if there is none with this key."""
        return self._native.update(_bytes(key), _bytes(value))

    def compare_and_set(self, key: Key, expected: Key | None, value: Key | None) -> bool:
        """Sets the value of a key if its present value is ``expected``, and says whether it was.

        ``None`` is a missing record: as ``expected`` it makes this an insert, as ``value`` a removal.
        """
        was = None if expected is None else _bytes(expected)
        return self._native.compare_and_set(_bytes(key), was, None if value is None else _bytes(value))

    def range(
        self,
        low: Key | None = None,
        high: Key | None = None,
        *,
        where: Key | None = None,
        descending: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """The records from ``low`` up to but not including ``high``, whose values meet a condition if one is given.

        A condition is written as for ``thalweg table find``: ``contains:X``, ``prefix:X``, ``=X``, ``4:8>=X``.
        """
        if limit is not None:
            whole("limit", limit, least=0)
        return self._records(*_ends(low, high, where), descending, False, limit)

    def count(self, low: Key | None = None, high: Key | None = None, *, where: Key | None = None) -> int:
        """How many records :meth:`range` would return."""
        return self._native.count(*_ends(low, high, where))

    def _records(
        self,
        low: bytes,
        high: bytes | None,
        where: bytes | None,
        descending: bool,
        keys_only: bool,
        limit: int | None,
    ) -> Iterator[tuple[bytes, bytes]]:
        while limit is None or limit > 0:
            most = RECORDS_TOGETHER if limit is None else min(limit, RECORDS_TOGETHER)
            records = self._native.read(low, high, where, descending, keys_only, most)
            yield from records
            if len(records) < most:
                return
            last = records[-1][0]
            low, high = (low, last) if descending else (last + b"\0", high)
            limit = None if limit is None else limit - most


def _bytes(given: Key) -> bytes:
    return given.encode() if isinstance(given, str) else given


def _ends(low: Key | None, high: Key | None, where: Key | None) -> tuple[bytes, bytes | None, bytes | None]:
    return (
        b"" if low is None else _bytes(low),
        None if high is None else _bytes(high),
        None if where is None else _bytes(where),
    )
