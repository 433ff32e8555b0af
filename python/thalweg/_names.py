"""Names of files, standard streams and numbers, as arguments of calls give them."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, SupportsIndex, TypeAlias, cast

from thalweg import _native
from thalweg.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Name: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A file, named as for the command: a path, ``-``, ``nodes:PATTERN``, ``client:PATH``, ``volume:NAME/PATH``,
``table:NAME@LOW..HIGH``."""
Size: TypeAlias = int | str
"""Bytes, or text with a unit or a share: ``"256MiB"``, ``"50%"``."""


class Array(Protocol):
    """An array of numpy, whose type has no buffer protocol before Python 3.12."""

    @property
    def __array_interface__(self) -> Any: ...


Bytes: TypeAlias = "Buffer | Array"
"""Anything with the buffer protocol."""


def names(given: object, what: str, wanted: str = "a name, or a list of names") -> list[str]:
    """One name, or several, as text. ``what`` is the argument that gives them."""
    one = isinstance(given, (str, bytes, os.PathLike))
    if not one and hasattr(given, "read"):
        # A file is a list, too: of its lines.
        raise TypeError(f"{what}={given!r}: give {wanted}; a Sorter sorts what a program reads itself")
    try:
        return [os.fsdecode(name) for name in cast("Iterable[Name]", [given] if one else given)]
    except TypeError:
        raise TypeError(f"{what}={given!r}: give {wanted}") from None


def some_names(given: object, what: str = "inputs") -> list[str]:
    """The same, and at least one: the command reads standard input if there is none."""
    found = names(given, what)
    if "-" in found:
        _check_stream(f"{what}='-'", "stdin", 0)
    if found:
        return found
    raise UsageError(f"{what}={given!r}: name at least one; '-' is standard input")


def one_name(given: object, what: str) -> str:
    """One name as text."""
    if isinstance(given, (str, bytes, os.PathLike)):
        return os.fsdecode(cast("Name", given))
    raise TypeError(f"{what}={given!r}: give a name")


def input_name(given: object, what: str) -> str:
    """The name of a file to read."""
    name = one_name(given, what)
    if name == "-":
        _check_stream(f"{what}='-'", "stdin", 0)
    return name


def output_name(given: object, what: str = "output") -> str:
    """The name of a file to write."""
    name = one_name(given, what)
    if name == "-":
        _check_stream(f"{what}='-'", "stdout", 1)
        # What the program has printed comes first.
        sys.stdout.flush()
    return name


def _check_stream(said: str, name: str, number: int) -> None:
    """Refuses a standard stream that the program has replaced, for the records would go past the new one."""
    try:
        is_own = os.path.sameopenfile(getattr(sys, name).fileno(), number)
    except (AttributeError, OSError, ValueError):  # It has no number, or is closed.
        is_own = False
    if not is_own:
        raise UsageError(f"{said}: sys.{name} is not the standard stream of this process; name a file")


def text(what: str, given: object) -> str:
    """A name that is no path."""
    if isinstance(given, str):
        return given
    raise TypeError(f"{what}={given!r}: give text")


def path(what: str, given: object) -> str:
    """A path as text."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{what}={given!r}: give text or a path")
    if found := os.fsdecode(cast("str | os.PathLike[str]", given)):
        return found
    raise UsageError(f"{what} is empty")


def whole(what: str, count: object, least: int = 1) -> int:
    """A number that is at least this, and has no fraction."""
    if not isinstance(count, SupportsIndex):
        raise TypeError(f"{what}={count!r}: give a whole number from {least} on")
    if operator.index(count) >= least:
        return operator.index(count)
    raise UsageError(f"{what}={count!r}: give a whole number from {least} on")


def seconds(what: str, given: object, most: float) -> float:
    """A time that is at most this."""
    if not isinstance(given, SupportsFloat):
        raise TypeError(f"{what}={given!r}: give seconds, from 0 to {most}")
    if 0 <= float(given) <= most:
        return float(given)
    raise UsageError(f"{what}={given!r}: give seconds, from 0 to {most}")


def size(what: str, given: object) -> int:
    """A number of bytes, of which there can be no share."""
    try:
        return _native.size(str(given))
    except UsageError as why:
        raise UsageError(f"{what}: {why}") from None
