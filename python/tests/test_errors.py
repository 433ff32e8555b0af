"""Exceptions: their classes, evidence and messages."""

from __future__ import annotations

import ast
import errno
import inspect
import io
import os
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from conftest import ROOT

import thalweg
import thalweg.errors


def test_a_missing_file_is_an_os_error() -> None:
    with pytest.raises(thalweg.FileError) as caught:
        thalweg.sort("nothing", "sorted")
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOENT
    assert str(caught.value.filename) == "nothing" and caught.value.action == "inspect"
    assert str(caught.value).startswith("cannot inspect nothing: ") and "\n" not in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError) and caught.value.strerror == os.strerror(errno.ENOENT)
    with pytest.raises(FileNotFoundError) as volume:
        thalweg.Volume("nosuch")
    assert isinstance(volume.value, thalweg.VolumeNotFound) and volume.value.errno == errno.ENOENT
    assert str(volume.value) == "there is no volume 'nosuch'; thalweg volume list shows those there are"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_that_may_not_be_read_is_a_permission_error() -> None:
    Path("locked").touch(mode=0)
    with pytest.raises(PermissionError) as caught:
        thalweg.sort("locked", "sorted")
    assert isinstance(caught.value, thalweg.PermissionDenied) and caught.value.errno == errno.EACCES


def test_an_error_comes_whole_from_another_process() -> None:
    """An OSError copies only its arguments, so errno and filename were lost on the way."""
    with pytest.raises(thalweg.FileError) as caught:
        thalweg.sort("nothing", "sorted")
    other = pickle.loads(pickle.dumps(caught.value))
    for what in ("errno", "strerror", "filename", "action", "offset", "args"):
        assert getattr(other, what) == getattr(caught.value, what)
    assert type(other) is type(caught.value) and str(other) == str(caught.value)
    full = thalweg.ScratchFull("full")
    full.needed = 3
    assert pickle.loads(pickle.dumps(full)).needed == 3
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        why = pool.submit(thalweg.sort, "nothing", "sorted").exception()
    assert isinstance(why, thalweg.FileError) and why.errno == errno.ENOENT and str(why.filename) == "nothing"


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


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: thalweg.sort(3, "b"), "inputs=3: give a name, or a list of names"),
        (lambda: thalweg.sort(["a", 3], "b"), "inputs=.'a', 3.: give a name"),
        (lambda: thalweg.check(None), "files=None: give a name"),
        (lambda: thalweg.pump("a", 3.0), "dest=3.0: give a name"),
        (lambda: thalweg.sort("a", "b", cluster=3), "cluster=3: give text or a path"),
        (lambda: thalweg.sort("a", "b", progress=3), "progress=3: give True, False or a function"),
        (lambda: thalweg.Cluster("river", on=3), "on=3: give a name"),
        (lambda: thalweg.Cluster("river").exec("uname -r"), "command='uname -r': give a list of words"),
        (lambda: thalweg.sort("a", 3), "output=3: give a name"),
        (lambda: thalweg.sort("a", "b", memory=True), "memory=True: give a number or text"),
        (lambda: thalweg.detach(3, "a", "b"), "verb=3: give text"),
        (lambda: thalweg.Cluster("river").exec(["true"], env=3), "env=3: give a mapping of names to values"),
        (lambda: thalweg.Table(3), "name=3: give text"),
        (lambda: thalweg.Volume(3), "name=3: give text"),
        (lambda: thalweg.sort(io.BytesIO(b"b\na\n"), "s"), "inputs=<_io.BytesIO .*>: give a name, or a list of names"),
        (lambda: thalweg.sort("a", None), "output=None: give a name"),
        (lambda: thalweg.sort("a", ["b", "c"]), "output=.'b', 'c'.: give a name"),
        (lambda: thalweg.pump("a", ["b", "c"]), "dest=.'b', 'c'.: give a name"),
        (lambda: thalweg.join(["a"], "b", "c"), "left=.'a'.: give a name"),
        (lambda: thalweg.sort("a", "b", memory=["16MiB", "64MiB"]), "memory=.*: give a number or text"),
        (lambda: thalweg.sort("a", "b", unique=1), "unique=1: give True or False"),
        (lambda: thalweg.River(inlets="one"), "inlets='one': give a whole number from 1 on"),
        (lambda: thalweg.Cluster("river").exec(["true"], timeout="1"), "timeout='1': give seconds"),
    ],
)  # fmt: skip
def test_an_argument_of_a_wrong_type_is_named(call: Callable[[], object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        call()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: thalweg.sort([], "b"), "inputs=..: name at least one; '-' is standard input"),
        (lambda: thalweg.sort("a", "b", cluster=""), "cluster is empty"),
        (lambda: thalweg.River(inlets=0), "inlets=0: give a whole number from 1 on"),
        (lambda: thalweg.River(outlets=-1), "outlets=-1: give a whole number from 1 on"),
        (lambda: thalweg.River(inlets=2**70), "inlets=[0-9]*: a river has at most 1024"),
        (lambda: thalweg.River(pick=3), "3 is none of robin, hash, copy, least-busy, and no function"),
        (lambda: thalweg.River(pick="fast"), "'fast' is none of robin"),
        (lambda: thalweg.Cluster("river").exec([]), "command=..: give a program and its arguments"),
        (lambda: thalweg.Cluster("river").exec(["true"], timeout=-1), "timeout=-1: give seconds, from 0 to"),
        (lambda: thalweg.Table().range(limit=-1), "limit=-1: give a whole number from 0 on"),
        (lambda: thalweg.Table(memory=-1), "memory"),
    ],
)
def test_an_argument_that_cannot_be_is_a_usage_error(call: Callable[[], object], why: str) -> None:
    with pytest.raises(thalweg.UsageError, match=why):
        call()


@pytest.mark.parametrize(
    "use",
    [
        lambda: thalweg.Cluster("river").exec(["true"]),
        lambda: thalweg.Table("events", cluster="river"),
        lambda: thalweg.sort("nodes:a", "nodes:b-{}", cluster="river"),
        lambda: thalweg.sort("table:a", "b"),
        lambda: thalweg.sort("a", "b", cluster=thalweg.Cluster()),
    ],
    ids=["exec", "table", "nodes", "table of a verb", "a cluster without a name"],
)
def test_a_cluster_without_an_identity_is_named(use: Callable[[], object]) -> None:
    with pytest.raises(thalweg.NoIdentity) as caught:
        use()
    assert caught.value.path.name == "thalweg"


def evidence(cls: type[BaseException]) -> set[str]:
    """The attributes that a class and those above it declare; some are those of an OSError."""
    declared = {name for above in cls.__mro__ for name in vars(above).get("__annotations__", {})}
    return declared | ({"errno", "filename"} if issubclass(cls, OSError) else set())


def test_classes_are_those_of_the_native_half_with_the_same_evidence() -> None:
    source = (ROOT / "crates/py/src/errors.rs").read_text()
    raised = re.findall(r'class!\(\s*\$?py,\s*"(\w+)"((?:,\s*\w+ = [^,()]*(?:\([^()]*\))?[^,()]*)*)\s*\)', source)
    assert len(raised) > 40 and {name for name, _ in raised} >= {"ScratchFull", "FileError", "UsageError"}
    for name, given in raised:
        attributes = set(re.findall(r"(\w+) = ", given))
        assert attributes <= evidence(getattr(thalweg.errors, name)), name
    by_name = set(re.findall(r'=> "(\w+)"', source)) | {name for name, _ in raised}
    own = "".join(path.read_text() for path in (ROOT / "python/thalweg").glob("*.py"))
    for name, cls in inspect.getmembers(thalweg.errors, inspect.isclass):
        # A class that is never raised itself has others below it.
        is_raised = name in by_name or re.search(rf"\b{name}\(", own.replace(f"class {name}(", ""))
        assert is_raised or cls.__subclasses__(), name


def test_the_stub_of_the_native_half_has_what_it_has() -> None:
    """Their types are those that pyright sees; that the names are right nothing else shows."""
    from thalweg import _native

    stub = ast.parse((ROOT / "python/thalweg/_native.pyi").read_text())
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    there = {name for name in dir(_native) if not name.startswith("_")}
    assert there == functions | classes.keys()
    for name, node in classes.items():
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        own = {item for item in vars(getattr(_native, name)) if not item.startswith("_")}
        assert own == {method for method in methods if not method.startswith("_")}, name
