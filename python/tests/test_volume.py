"""Volumes, as files and for fsspec."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import thalweg


@pytest.fixture
def films() -> thalweg.Volume:
    os.mkdir("d1")
    os.mkdir("d2")
    command = ["thalweg", "volume", "create", "films", "--stores", "d1,d2", "-q"]
    subprocess.run(command, check=True)
    return thalweg.Volume("films")


def test_what_is_appended_goes_to_the_end_that_the_file_has_then(films: thalweg.Volume) -> None:
    one, other = films.open("log", "ab"), films.open("log", "ab")
    for n in range(20):
        (one, other)[n % 2].write(b"%02d\n" % n)
        (one, other)[n % 2].flush()
    one.seek(0)
    one.write(b"last\n")
    one.close()
    other.close()
    assert films.open("log").read() == b"".join(b"%02d\n" % n for n in range(20)) + b"last\n"


def test_files_are_written_read_and_listed(films: thalweg.Volume) -> None:
    films.make_directory("a/b")
    with films.open("a/b/c", "wb") as file:
        file.write(bytes(range(256)) * 20_000)
    with films.open("a/b/c", "r+b") as file:
        file.seek(-2, 2)
        file.write(b"xy")
    with films.open("a/b/c", "ab") as file:
        file.write(b"z")
    with films.open("e", "w+b") as file:
        file.write(b"xyz")
        file.seek(1)
        assert file.read() == b"yz"
    with pytest.raises(FileExistsError, match="e"):
        films.open("e", "xb")
    films.remove("e")
    with films.open("e", "xb") as file:
        file.write(b"new")
    with pytest.raises(FileExistsError):
        films.open("e", "x+b")
    assert films.open("e").read() == b"new"
    films.remove("e")
    for mode in ("x", "r", "w", "rb+t"):
        with pytest.raises(thalweg.UsageError, match="is none of rb, wb, xb, ab, r.b, w.b, x.b"):
            films.open("e", mode)
    with films.open("a/b/c") as file:
        assert file.read(3) == b"\0\1\2"
        for place in (-1, -(2**40)):
            with pytest.raises(OSError, match="Invalid argument"):
                file.seek(place)
        file.seek(-3, 2)
        assert file.read() == b"xyz"
    assert films.stat("a/b/c").size == 256 * 20_000 + 1
    films.rename("a/b/c", "d")
    assert {name: stat.kind for name, stat in films.list().items()} == {"a": "directory", "d": "file"}
    with films.open("d", "wb"):
        pass
    assert films.stat("d").size == 0
    films.remove("d")
    with pytest.raises(FileNotFoundError) as missing:
        films.open("d")
    assert isinstance(missing.value, thalweg.VolumeNotFound) and missing.value.errno == errno.ENOENT
    assert missing.value.filename == "d"
    with pytest.raises(OSError) as full:
        films.remove("a")
    assert full.value.errno == errno.ENOTEMPTY and full.value.filename == "a"


def test_verbs_take_files_of_a_volume(films: thalweg.Volume) -> None:
    thalweg.gen("1k", "records")
    thalweg.sort("records", "volume:films/sorted", datamation=True)
    assert thalweg.check("volume:films/sorted", datamation=True).ordered


def test_fsspec_reads_and_writes_it(films: thalweg.Volume) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("thalweg://films/x/y.csv", "wb", auto_mkdir=True) as file:
        file.write(b"a,b\n1,2\n")
    assert fsspec.open("thalweg://films/x/y.csv").open().read() == b"a,b\n1,2\n"
    system = fsspec.filesystem("thalweg")
    assert system.ls("films/x", detail=False) == ["films/x/y.csv"]
    assert system.glob("films/**/*.csv") == ["films/x/y.csv"]
    assert system.cat_ranges(["films/x/y.csv"], [4], [5]) == [b"1"]
    system.mv("films/x/y.csv", "films/z")
    system.rm("films/x", recursive=True)
    assert system.find("films") == ["films/z"]
    with pytest.raises(FileNotFoundError):
        system.info("films/x")
    system.cp("films/z", "films/copy")
    assert system.cat("films/copy") == b"a,b\n1,2\n"
    assert system.cat_file("films/copy", start=-4) == b"1,2\n" and system.cat_file("films/copy", 2, -4) == b"b\n"
    with system.open("films/copy", "rb+") as file:
        file.write(b"b")
        file.seek(0)
        assert file.read(3) == b"b,b"
    assert abs(system.modified("films/copy").timestamp() - time.time()) < 60
    with pytest.raises(NotImplementedError, match="does not keep when a file was created"):
        system.created("films/copy")
    system.mkdir("films/d")
    system.makedirs("films/d", exist_ok=True)
    for made in (system.mkdir, system.makedirs):
        with pytest.raises(FileExistsError):
            made("films/d")
    with pytest.raises(FileNotFoundError):
        system.mkdir("films/no/d", create_parents=False)
    assert system.ls("", detail=False) == ["films"] and system.isdir("thalweg://")
    # Into a directory, several at once, and a directory itself.
    system.mv("films/copy", "films/d")
    system.mkdir("films/e")
    system.mv(["films/z", "films/d/copy"], "films/e/")
    system.mv("films/e", "films/f", recursive=True)
    assert system.find("films") == ["films/f/copy", "films/f/z"]


def test_duckdb_reads_it(films: thalweg.Volume) -> None:
    duckdb = pytest.importorskip("duckdb")
    fsspec = pytest.importorskip("fsspec")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"a": range(1000)}).to_parquet("thalweg://films/f.parquet")
    duckdb.register_filesystem(fsspec.filesystem("thalweg"))
    assert duckdb.sql("select sum(a) from read_parquet('thalweg://films/f.parquet')").fetchall() == [(499_500,)]


def test_pandas_and_pyarrow_read_and_write_it(films: thalweg.Volume) -> None:
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame({"a": range(1000), "b": "x"})
    frame.to_parquet("thalweg://films/t.parquet")
    assert pandas.read_parquet("thalweg://films/t.parquet").equals(frame)
    with films.open("t.parquet") as file:
        assert parquet.read_table(file).num_rows == 1000


def test_a_volume_and_its_file_system_go_to_other_processes(films: thalweg.Volume) -> None:
    fsspec = pytest.importorskip("fsspec")
    with films.open("reel", "wb") as reel:
        reel.write(b"frames")
    assert pickle.loads(pickle.dumps(films)).open("reel").read() == b"frames"
    system = fsspec.filesystem("thalweg")
    assert pickle.loads(pickle.dumps(system)).cat("films/reel") == b"frames"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(films.stat, "reel").result().size == 6
        assert pool.submit(system.cat, "films/reel").result() == b"frames"


def test_what_fsspec_writes_has_its_name_when_it_is_whole(films: thalweg.Volume) -> None:
    """A write that failed left its first bytes in the place of the file before it, and a transaction failed."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("thalweg", auto_mkdir=True)
    system.pipe("films/d/a", b"old")
    films.set_mode("d/a", 0o600)
    big = bytes(3 << 20)
    with pytest.raises(ZeroDivisionError), system.open("films/d/a", "wb") as file:
        file.write(big)
        raise ZeroDivisionError
    assert system.cat("films/d/a") == b"old" and list(films.list("d")) == ["a"]
    with system.open("films/d/a", "wb") as file:
        file.write(big)
        assert system.cat("films/d/a") == b"old" and system.find("films") == ["films/d/a"]
    assert films.stat("d/a")[:3] == ("file", 3 << 20, 0o600) and list(films.list("d")) == ["a"]
    with pytest.raises(FileExistsError):
        system.open("films/d/a", "xb")
    with pytest.raises(IsADirectoryError):
        system.open("films/d", "wb")
    with system.transaction:
        with system.open("films/d/b", "wb") as file:
            file.write(b"new")
        system.pipe("films/d/a", b"newer")
        assert not system.exists("films/d/b") and system.size("films/d/a") == 3 << 20
        with pytest.raises(thalweg.UsageError, match="a transaction writes whole files"):
            system.open("films/d/b", "ab")
    assert system.cat(["films/d/a", "films/d/b"]) == {"films/d/a": b"newer", "films/d/b": b"new"}
    with pytest.raises(ZeroDivisionError), system.transaction:
        system.pipe("films/d/c", b"c")
        raise ZeroDivisionError
    assert list(films.list("d")) == ["a", "b"]


def test_a_volume_that_is_full_leaves_the_file_before(place: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    os.mkdir("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", "disk"], capture_output=True).returncode != 0:
        pytest.skip("only root mounts a small disk")
    try:
        subprocess.run(["thalweg", "volume", "create", "small", "--stores", "disk", "-q"], check=True)
        system = fsspec.filesystem("thalweg")
        system.pipe("small/a", b"old")
        with pytest.raises(OSError), system.open("small/a", "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        assert system.cat("small/a") == b"old" and system.ls("small", detail=False) == ["small/a"]
        del file, system
    finally:
        subprocess.run(["umount", "-l", "disk"], check=True)


def test_verbs_take_the_urls_of_fsspec(films: thalweg.Volume) -> None:
    thalweg.gen("1k", "records")
    thalweg.sort("records", "thalweg://films/sorted", datamation=True)
    assert thalweg.check("thalweg://films/sorted", datamation=True).ordered
    thalweg.pump("thalweg://films/sorted", "here")
    thalweg.pump("here", "thalweg://films/there")
    assert films.stat("there").size == os.path.getsize("here") == 100_000
