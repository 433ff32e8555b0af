"""Makes objects of JSON, and JSON and text of objects."""

from __future__ import annotations

import dataclasses
import html
import json
import types
import typing
from typing import Any, TypeVar

from thalweg import _native

_T = TypeVar("_T")


def made(cls: type[_T], text: str) -> _T:
    """The object of this class that is written as JSON."""
    return typing.cast(_T, _of(cls, json.loads(text)))


def _of(kind: Any, value: Any) -> Any:
    """The value that JSON holds for an annotation. Names that the class does not have are left out."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind).items()
        given = {name: _of(hint, value[key]) for name, hint in hints if (key := _key(name)) in value}
        return typing.cast(Any, kind)(**given)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _of(args[0], value)
    if origin is tuple:
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_of(of_item, item) for of_item, item in zip(inner, value, strict=True))
    if kind is Checksum:
        return Checksum(int(value, 16))
    return value


def _key(name: str) -> str:
    """The name in JSON of a field, which may be a keyword of Python."""
    return name.rstrip("_")


class Checksum(int):
    """A sum of hashes of 128 bits; its text is hexadecimal."""

    def __str__(self) -> str:
        return f"{int(self):032x}"

    __repr__ = __str__


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, Object):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in typing.cast(tuple[Any, ...], value)]
    return str(value) if isinstance(value, Checksum) else value


class Object:
    """What a call returns: a frozen dataclass whose ``str`` is what the command prints."""

    def to_dict(self) -> dict[str, Any]:
        """The object that the command prints with ``--json``: checksums are hexadecimal text."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        given = {field.name: getattr(self, field.name) for field in fields}
        # What has a default is not printed while it has it.
        return {_key(f.name): _plain(given[f.name]) for f in fields if given[f.name] != f.default}

    def __str__(self) -> str:
        return (_native.text(type(self).__name__, json.dumps(self.to_dict())) or repr(self)).rstrip("\n")

    def _title(self) -> str:
        """What a notebook shows at first, if that is not the first line."""
        return ""

    def _repr_html_(self) -> str:
        """For notebooks: a line that sums it up, and the rest to be unfolded."""
        first, _, rest = str(self).partition("\n")
        if title := self._title():
            first, rest = title, str(self)
        body = f"<pre>{html.escape(rest)}</pre>" if rest else ""
        return f"<details><summary>{html.escape(first)}</summary>{body}</details>"


def counted(count: float, noun: str) -> str:
    """A whole number of things, in words."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"
