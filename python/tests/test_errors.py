"""Exceptions: their classes, evidence and messages."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import thalweg


def test_a_missing_file_is_an_os_error() -> None:
    with pytest.raises(thalweg.FileError) as caught:
        thalweg.sort("nothing", "sorted")
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOENT
    assert str(caught.value.filename) == "nothing" and caught.value.action == "inspect"
    assert str(caught.value).startswith("cannot inspect nothing: ") and "\n" not in str(caught.value)


def test_variants_carry_their_evidence() -> None:
    Path("ragged").write_bytes(bytes(250))
    with pytest.raises(thalweg.Ragged) as ragged:
        thalweg.sort("ragged", "sorted", record=100)
    assert (ragged.value.path, ragged.value.bytes, ragged.value.record_bytes) == ("ragged", 250, 100)

    Path("two").write_text("b\na\n")
    with pytest.raises(thalweg.Unordered) as unordered:
        thalweg.merge(["two", "two"], "merged")
    assert (unordered.value.path, unordered.value.record) == (Path("two"), 1)

    with pytest.raises(thalweg.TooLittleMemory) as memory:
        thalweg.sort("two", "sorted", memory="1MiB")
    assert memory.value.given == 1 << 20 and (memory.value.needed or 0) > memory.value.given

    with pytest.raises(thalweg.KeyOutside) as key:
        thalweg.sort("ragged", "sorted", record=10, by="8:4")
    assert (key.value.offset, key.value.length, key.value.record_bytes) == (8, 4, 10)

    with pytest.raises(thalweg.BadPath) as path:
        thalweg.sort("two", ".")
    assert path.value.path == Path(".")


def test_a_full_scratch_is_told_in_numbers() -> None:
    thalweg.gen("1M", "records")
    with pytest.raises(thalweg.ScratchFull) as full:
        thalweg.sort("records", "sorted", datamation=True, memory="16MiB", scratch_limit="1MiB")
    assert full.value.limit == 1 << 20 and full.value.needed > full.value.available
    assert not Path("sorted").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"record": "x"}, "record"),
        ({"by": "1"}, "by"),
        ({"memory": "lots"}, "memory"),
        ({"cluster": "none", "nodes": 2}, "nodes"),
        ({"on": ["a"]}, "on"),
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(options: dict[str, object], why: str) -> None:
    with pytest.raises(thalweg.UsageError, match=why) as caught:
        thalweg.sort("a", "b", **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


def test_a_cluster_without_an_identity_is_named() -> None:
    with pytest.raises(thalweg.NoIdentity) as caught:
        thalweg.Cluster("river").exec(["true"])
    assert caught.value.path.name == "thalweg"
