"""Files of a volume."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Generator
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from thalweg import _native
from thalweg._names import text
from thalweg.errors import UsageError, VolumeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 1 << 20
"""What an open file reads or writes at once: a stripe, unless the volume has others."""


_MODES = ("rb", "wb", "xb", "ab", "r+b", "w+b", "x+b")
"""How a file may be opened."""


class Stat(NamedTuple):
    """What is known of a file or directory."""

    kind: str
    """``file``, ``directory`` or ``other``."""
    size: int
    """Bytes."""
    mode: int
    """The permission bits."""
    user: int
    """Its owner."""
    group: int
    """Its group."""
    modified_ns: int
    """When its contents last changed, in nanoseconds since 1970."""


class Volume:
    """One of this user's volumes, on this machine or on a cluster. ``thalweg volume create`` makes one.

    Paths begin at the root of the volume. Threads may share it, and its files.

    >>> import os, subprocess, thalweg
    >>> os.mkdir("disk1"), os.mkdir("disk2")
    (None, None)
    >>> _ = subprocess.run(["thalweg", "volume", "create", "films", "--stores", "disk1,disk2", "-q"], check=True)
    >>> films = thalweg.Volume("films")
    >>> with films.open("reel", "wb") as reel:
    ...     _ = reel.write(b"abcdefgh")
    >>> films.stat("reel").size, list(films.list())
    (8, ['reel'])
    >>> films.remove("reel")

    Raises :class:`thalweg.VolumeError`, which is an :class:`OSError`; :class:`thalweg.VolumeNotFound` is also a
    :class:`FileNotFoundError`, and :class:`thalweg.VolumeExists` a :class:`FileExistsError`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._native = _native.Volume(text("name", name))

    def __repr__(self) -> str:
        return f"Volume({self.name!r})"

    def __reduce__(self) -> tuple[type[Volume], tuple[str]]:
        return Volume, (self.name,)

    def open(self, path: str | os.PathLike[str], mode: str = "rb") -> IO[bytes]:
        """Opens a file to read (``rb``), to write anew (``wb``), to write it if it does not exist (``xb``), to append
        (``ab``), to read and write (``r+b``), or to write anew and read (``w+b``, ``x+b``). There are no other modes:
        text is for :class:`io.TextIOWrapper`.

        What is written is durable when the file is closed.
        """
        if sorted(text("mode", mode)) not in map(sorted, _MODES):
            raise UsageError(f"mode '{mode}' is none of {', '.join(_MODES)}")
        plain = "".join(letter for letter in "rwxa+" if letter in mode)
        with _about(path):
            native = self._native.open(os.fspath(path), plain[0])
            if plain[0] == "w":
                native.set_size(0)
        raw = _Raw(native, readable=plain not in ("w", "x", "a"), writable=plain != "r", appends=plain == "a")
        if plain == "a":
            raw.seek(0, os.SEEK_END)
        if "+" in plain:
            return cast(IO[bytes], io.BufferedRandom(raw, BUFFER_BYTES))
        whole = io.BufferedReader(raw, BUFFER_BYTES) if plain == "r" else io.BufferedWriter(raw, BUFFER_BYTES)
        return cast(IO[bytes], whole)

    def list(self, path: str | os.PathLike[str] = "") -> dict[str, Stat]:
        """What is in a directory, by name, in the order of the names."""
        with _about(path):
            return {name: Stat(*stat) for name, stat in self._native.list(os.fspath(path))}

    def stat(self, path: str | os.PathLike[str]) -> Stat:
        """What is at a path; of a symbolic link, what it leads to."""
        with _about(path):
            return Stat(*self._native.stat(os.fspath(path)))

    def make_directory(self, path: str | os.PathLike[str]) -> None:
        """Makes a directory, and those above it that are not there."""
        with _about(path):
            self._native.make_directory(os.fspath(path))

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Removes a file, or a directory that is empty."""
        with _about(path):
            self._native.remove(os.fspath(path))

    def set_mode(self, path: str | os.PathLike[str], mode: int) -> None:
        """Sets the permission bits of a file or directory."""
        with _about(path):
            self._native.set_mode(os.fspath(path), mode)

    def rename(self, old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
        """Gives a file or directory another name. A file that has it is replaced."""
        with _about(old):
            self._native.rename(os.fspath(old), os.fspath(new))


class _Raw(io.RawIOBase):
    """A file as Python's buffered files use it."""

    def __init__(self, native: _native.File, *, readable: bool, writable: bool, appends: bool) -> None:
        self._native = native
        self._appends = appends
        self._readable = readable
        self._writable = writable
        self._at = 0

    def readable(self) -> bool:
        return self._readable

    def writable(self) -> bool:
        return self._writable

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        into = memoryview(buffer).cast("B")
        read = self._native.read_at(self._at, len(into))
        into[: len(read)] = read
        self._at += len(read)
        return len(read)

    def write(self, b: Buffer, /) -> int:
        written = memoryview(b).nbytes
        if self._appends and written > 0:
            # Wherever the end is now: others may append, too.
            self._at = self._native.append(b)
        else:
            self._native.write_at(self._at, b)
            self._at += written
        return written

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = _offset((self._native.size() if base is None else base) + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None, /) -> int:
        size = self._at if size is None else _offset(size)
        self._native.set_size(size)
        return size

    def close(self) -> None:
        if not self.closed and self._writable:
            self._native.sync()
        super().close()


@contextlib.contextmanager
def _about(path: str | os.PathLike[str]) -> Generator[None]:
    """Errors of a volume that leave this context have the path as their file name, as other errors of files do."""
    try:
        yield
    except VolumeError as why:
        why.filename = os.fspath(path)
        raise


def _offset(at: int) -> int:
    """A place in a file, refused as other files of Python do."""
    if 0 <= at < 1 << 63:
        return at
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
