"""Volumes for fsspec: ``thalweg://films/x`` for pandas, pyarrow, duckdb and whatever else reads by it.

fsspec finds this module by the package's entry point; nothing else imports it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from fsspec import AbstractFileSystem  # pyright: ignore[reportMissingTypeStubs]
from fsspec.core import has_magic  # pyright: ignore

from thalweg.errors import UsageError
from thalweg.volume import BUFFER_BYTES, Stat, Volume

_MARK, _END = ".thalweg-", ".partial"
"""How the name of a file begins and ends that is not whole yet; no list shows it."""


class VolumeFileSystem(AbstractFileSystem):
    """All volumes of this user, each a directory of the root.

    >>> import fsspec, os, subprocess
    >>> os.mkdir("disk1"), os.mkdir("disk2")
    (None, None)
    >>> _ = subprocess.run(["thalweg", "volume", "create", "reels", "--stores", "disk1,disk2", "-q"], check=True)
    >>> with fsspec.open("thalweg://reels/a/b", "wb", auto_mkdir=True) as file:
    ...     _ = file.write(b"abc")
    >>> fsspec.open("thalweg://reels/a/b").open().read()
    b'abc'
    """

    protocol = "thalweg"
    cachable = False

    def __init__(self, auto_mkdir: bool = False, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._auto_mkdir = auto_mkdir
        self._volumes: dict[str, Volume] = {}

    def _place(self, path: str) -> tuple[Volume, str]:
        name, _, inside = str(self._strip_protocol(path)).lstrip("/").partition("/")  # pyright: ignore
        if not name:
            raise FileNotFoundError(f"'{path}' names no volume: write thalweg://NAME/PATH")
        if name not in self._volumes:
            self._volumes[name] = Volume(name)
        return self._volumes[name], inside

    @staticmethod
    def _entry(name: str, stat: Stat) -> dict[str, Any]:
        kind = stat.kind if stat.kind in ("file", "directory") else "other"
        return {"name": name, "size": stat.size, "type": kind, "mtime": stat.modified_ns / 1e9}

    def _is_root(self, path: str) -> bool:
        return str(self._strip_protocol(path)).strip("/") == ""  # pyright: ignore

    @staticmethod
    def _names() -> list[str]:
        """The names of this user's volumes."""
        command = [sys.executable, "-m", "thalweg", "volume", "list", "--json"]
        listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return [volume["name"] for volume in listed["volumes"]]

    def created(self, path: str) -> datetime:
        raise NotImplementedError("a volume does not keep when a file was created; modified() is when it last changed")

    def modified(self, path: str) -> datetime:
        volume, inside = self._place(path)
        return datetime.fromtimestamp(volume.stat(inside).modified_ns / 1e9, tz=UTC)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if self._is_root(path):
            return {"name": "", "size": 0, "type": "directory"}
        volume, inside = self._place(path)
        return self._entry(f"{volume.name}/{inside}".rstrip("/"), volume.stat(inside))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        if self._is_root(path):
            names = self._names()
            return [self.info(name) for name in names] if detail else names
        volume, inside = self._place(path)
        name = f"{volume.name}/{inside}".rstrip("/")
        stat = volume.stat(inside)
        if stat.kind != "directory":
            found = [self._entry(name, stat)]
        else:
            children = volume.list(inside).items()
            found = [self._entry(f"{name}/{child}", stat) for child, stat in children if not _is_unfinished(child)]
        return found if detail else [entry["name"] for entry in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        if self.exists(path):  # pyright: ignore[reportUnknownMemberType]
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        volume, inside = self._place(path)
        if not create_parents:
            volume.stat(inside.rstrip("/").rpartition("/")[0])
        volume.make_directory(inside)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok or not self.isdir(path):  # pyright: ignore[reportUnknownMemberType]
            self.mkdir(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):  # pyright: ignore[reportUnknownMemberType]
            return self.makedirs(path2, exist_ok=True)
        with self._open(path1) as source, self._open(path2, "wb") as copy:
            shutil.copyfileobj(source, copy, BUFFER_BYTES)

    def _rm(self, path: str) -> None:
        volume, inside = self._place(path)
        volume.remove(inside)

    rmdir = _rm

    def mv(self, path1: Any, path2: Any, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not isinstance(path1, str) or not isinstance(path2, str) or has_magic(path1):
            return super().mv(path1, path2, **options)  # pyright: ignore
        if path2.endswith("/") or self.isdir(path2):  # pyright: ignore[reportUnknownMemberType]
            path2 = f"{path2.rstrip('/')}/{path1.rstrip('/').rpartition('/')[2]}"
        (volume, old), (other, new) = self._place(path1), self._place(path2)
        if volume.name == other.name:
            return volume.rename(old, new)
        return super().mv(path1, path2, **options)  # pyright: ignore

    def _open(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, path: str, mode: str = "rb", autocommit: bool = True, **_: Any
    ) -> Any:
        volume, inside = self._place(path)
        if self._auto_mkdir and "r" not in mode and "/" in inside:
            volume.make_directory(inside.rpartition("/")[0])
        if mode in ("wb", "xb"):
            return _Written(volume, inside, must_be_new=mode == "xb", autocommit=autocommit)
        if not autocommit and mode != "rb":
            raise UsageError(f"mode '{mode}': a transaction writes whole files; use wb or xb, or no transaction")
        if mode == "rb":
            return _Read(volume, inside)
        return volume.open(inside, mode)


def _hidden(directory: str) -> str:
    """A name for a file of this directory that is not whole yet."""
    return f"{directory}/{_MARK}{os.getpid()}-{secrets.token_hex(8)}{_END}".lstrip("/")


def _is_unfinished(name: str) -> bool:
    return name.startswith(_MARK) and name.endswith(_END)


class _Read(io.BufferedReader):
    """A file that is read, with the attributes that fsspec looks for."""

    def __init__(self, volume: Volume, path: str) -> None:
        super().__init__(volume.open(path, "rb").detach(), BUFFER_BYTES)  # pyright: ignore
        self.path = path

    @property
    def size(self) -> int:
        """Its bytes."""
        at = self.tell()
        try:
            return self.seek(0, os.SEEK_END)
        finally:
            self.seek(at)


class _Written(io.BufferedWriter):
    """A file that has its name when all of it is written: when it is closed, or at the end of a transaction."""

    def __init__(self, volume: Volume, path: str, *, must_be_new: bool, autocommit: bool) -> None:
        self._volume, self._path = volume, path
        self._must_be_new, self._autocommit = must_be_new, autocommit
        self._before()
        directory, _, _ = path.rpartition("/")
        self._hidden = _hidden(directory)
        self._is_left = True
        super().__init__(volume.open(self._hidden, "xb").detach(), BUFFER_BYTES)  # pyright: ignore

    def _before(self) -> Stat | None:
        """The file that has the name now, or an error if it cannot be replaced."""
        try:
            before = self._volume.stat(self._path)
        except FileNotFoundError:
            return None
        number = errno.EEXIST if self._must_be_new else errno.EISDIR if before.kind == "directory" else 0
        if number:
            raise OSError(number, os.strerror(number), self._path)
        return before

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
            if self._autocommit:
                self.commit()
        except BaseException:
            self.discard()
            raise

    def commit(self) -> None:
        """Gives the file its name, unless it was discarded."""
        if not self.closed:
            super().close()
        if self._is_left:
            if (before := self._before()) is not None:
                self._volume.set_mode(self._hidden, before.mode)
            self._volume.rename(self._hidden, self._path)
            self._is_left = False

    def discard(self) -> None:
        """Removes what was written."""
        if not self.closed:
            self.raw.close()
        if self._is_left:
            self._volume.remove(self._hidden)
            self._is_left = False

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
