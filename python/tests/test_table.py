"""Tables of the program and of a cluster."""

from __future__ import annotations

import os
import random
import signal
import subprocess

import pytest
from conftest import Nodes

import thalweg


def works_as_a_mapping(table: thalweg.Table) -> None:
    model: dict[bytes, bytes] = {}
    rng = random.Random(22)
    for _ in range(3000):
        key, value = b"key:%04d" % rng.randrange(2000), b"%d" % rng.randrange(100)
        if rng.randrange(4):
            table[key] = value
            model[key] = value
        else:
            assert table.pop(key, None) == model.pop(key, None)
    assert len(table) == len(model) and len(model) > thalweg.table.RECORDS_TOGETHER
    assert list(table.items()) == sorted(model.items())
    assert list(table) == sorted(model)
    assert list(table["key:0500":b"key:1000"]) == [
        record for record in sorted(model.items()) if b"key:0500" <= record[0] < b"key:1000"
    ]
    assert list(table.range(descending=True)) == sorted(model.items(), reverse=True)
    assert list(table.range("key:1", descending=True, limit=3)) == sorted(model.items(), reverse=True)[:3]
    sevens = [record for record in sorted(model.items()) if b"7" in record[1]]
    assert list(table.range(where="contains:7")) == sevens
    assert table.count(where=b"contains:7") == len(sevens)
    assert table.insert("new", "1") and not table.insert("new", "2")
    assert table.replace("new", "2") and not table.replace("old", "2")
    assert table.compare_and_set("new", "2", "3") and not table.compare_and_set("new", None, "4")
    assert table["new"] == b"3" and "new" in table and "old" not in table
    assert table.compare_and_set("new", b"3", None) and "new" not in table
    with pytest.raises(KeyError):
        table["new"]
    with pytest.raises(KeyError):
        del table["new"]
    with pytest.raises(thalweg.TableError, match="2047 bytes"):
        table["k" * 2048] = b""
    with pytest.raises(thalweg.UsageError):
        table["a":"b":2]
    with pytest.raises(thalweg.TableError, match="condition"):
        list(table.range(where="what"))


def is_emptied(table: thalweg.Table) -> None:
    records = list(table.items())
    assert table.popitem() == records[0] and list(table.items()) == records[1:] != []
    table.clear()
    assert len(table) == 0
    with pytest.raises(KeyError):
        table.popitem()


def test_a_table_of_the_program_is_a_mapping_in_order() -> None:
    table = thalweg.Table(memory="16MiB")
    works_as_a_mapping(table)
    is_emptied(table)


def test_what_cannot_be_a_key_is_in_no_table() -> None:
    films = thalweg.Table()
    films["film:1"] = "Citizen Kane"
    assert bytearray(b"film:1") in films and 1 not in films and None not in films


def test_a_number_with_another_order_of_bytes_is_no_key() -> None:
    numpy = pytest.importorskip("numpy")
    table = thalweg.Table()
    for use in (
        lambda key: table.insert(key, b""),
        lambda key: list(table.range(key)),
        lambda key: table.count(b"", key),
    ):
        with pytest.raises(TypeError, match="would not be in the order of their values"):
            use(numpy.int64(3))
    table[numpy.array([3], ">u8")] = numpy.int64(4)
    assert list(table.items()) == [(bytes(7) + b"\3", b"\4" + bytes(7))]


def test_a_full_table_says_so() -> None:
    table = thalweg.Table(memory=1 << 20)
    with pytest.raises(thalweg.TableFull, match="1048576 bytes"):
        for number in range(2000):
            table[str(number)] = bytes(1000)
    with pytest.raises(thalweg.TableError):
        thalweg.Table(memory=1000)
    with pytest.raises(thalweg.UsageError):
        thalweg.Table(cluster="river")


def test_a_table_of_a_cluster_is_the_same_mapping(nodes: Nodes) -> None:
    identity = nodes.identity
    command = ["thalweg", "table", "create", "events", "--capacity", "500", "--identity", identity]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    works_as_a_mapping(thalweg.Table("events", cluster=identity))
    with pytest.raises(thalweg.TableError, match="no index"):
        thalweg.Table("events", cluster=identity, variant="s")
    for variant in thalweg.table.VARIANTS[:3]:
        assert len(thalweg.Table("events", cluster=identity, variant=variant)) > 0
    with pytest.raises(thalweg.UsageError, match="variant"):
        thalweg.Table("events", cluster=identity, variant="x")
    works_again = thalweg.Table("events", cluster=thalweg.Cluster(identity=identity))
    assert works_again.count() > 1000
    with pytest.raises(thalweg.TableError, match="no table 'other'"):
        thalweg.Table("other", cluster=identity)
    is_emptied(works_again)


def test_a_change_without_an_answer_may_have_been_made(nodes: Nodes) -> None:
    """The same exception was raised for changes that were refused."""
    command = ["thalweg", "table", "create", "events", "--identity", nodes.identity]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    table = thalweg.Table("events", cluster=nodes.identity)
    table["a"] = "1"
    nodes.signal(signal.SIGSTOP)
    try:
        with pytest.raises(thalweg.UncertainChange, match="the change may have been made"):
            table["a"] = "2"
    finally:
        nodes.signal(signal.SIGCONT)


def test_verbs_read_and_load_a_table(nodes: Nodes) -> None:
    os.environ["THALWEG_IDENTITY"] = nodes.identity
    try:
        subprocess.run(["thalweg", "table", "create", "events", "-q"], check=True, stdout=subprocess.DEVNULL)
        thalweg.gen("1k", "records")
        thalweg.sort("records", "table:events", datamation=True)
        thalweg.sort("records", "sorted", datamation=True)
        thalweg.pump("table:events", "dump")
    finally:
        del os.environ["THALWEG_IDENTITY"]
    with open("sorted", "rb") as expected, open("dump", "rb") as dumped:
        assert expected.read() == dumped.read()
