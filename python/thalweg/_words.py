"""Turns keywords into the words of the command, whose table of flags gives them their meaning."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

Name: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A file, named as for the command: a path, ``-``, ``nodes:PATTERN``, ``client:PATH``, ``volume:NAME/PATH``,
``table:NAME@LOW..HIGH``."""
Size: TypeAlias = int | str
"""Bytes, or text with a unit or a share: ``"256MiB"``, ``"50%"``."""
Option: TypeAlias = bool | int | float | Name | Iterable[Name] | None
"""The value of a keyword. ``None``, ``False`` and an empty list are as if it were not there."""


class Array(Protocol):
    """An array of numpy, whose type has no buffer protocol before Python 3.12."""

    @property
    def __array_interface__(self) -> Any: ...


Bytes: TypeAlias = "Buffer | Array"
"""Anything with the buffer protocol."""


def names(given: Name | Iterable[Name]) -> list[str]:
    """One name, or several, as text."""
    one = isinstance(given, (str, bytes, os.PathLike))
    return [os.fsdecode(name) for name in ([given] if one else given)]


def flags(options: dict[str, Option]) -> list[str]:
    """The flags for keywords: ``right_record=8`` is ``--right-record=8``."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is None or value is False:
            continue
        elif isinstance(value, (int, float)):
            words.append(f"{flag}={value}")
        else:
            words += [f"{flag}={word}" for word in names(value)]
    return words


def words(verb: str, given: Iterable[str], options: dict[str, Option]) -> list[str]:
    """A command: its name, its flags, and what is not a flag."""
    return [*verb.split(), *flags(options), "--", *given]
