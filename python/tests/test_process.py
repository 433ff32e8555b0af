"""The process around the calls: signals, threads, forks, and what an import costs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Nodes

import thalweg

SHARE_OF_ASYNCIO = 2.5
"""The most time that the import takes, in times of that of asyncio."""


def python(code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "thalweg", "gen", "10", "records", "-q"], capture_output=True)
    assert done.returncode == 0 and Path("records").stat().st_size == 1_000


def test_a_cluster_that_ray_hosts_is_named_to_the_command(place: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["thalweg", *words], capture_output=True, text=True)

    down = command("cluster", "down", "--cluster", "ray:river")
    assert down.returncode == 2 and "thalweg.ray.down ends it" in down.stderr
    own = place.parent / ".home/thalweg/ray/river"
    subprocess.run(["thalweg", "cluster", "init", "river", "n1=127.0.0.1:1", "--identity", own, "-q"], check=True)
    for flag in ("--identity", "--cluster"):
        for words in ([flag, "ray:river"], [f"{flag}=ray:river"]):
            assert "n1    127.0.0.1:1  down" in command("cluster", "status", *words).stdout


HEARS = "import signal, thalweg; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A program that a shell has started in the background ignores Ctrl-C."""


def ready(place: Path, made: str, work: str) -> subprocess.Popen[bytes]:
    """A program that has run `made`, and is about to run `work`."""
    program = subprocess.Popen(
        [sys.executable, "-c", f"{HEARS}\n{made}\nprint('ready', flush=True)\n{work}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place,
    )
    assert program.stdout and program.stdout.readline() == b"ready\n"
    return program


@pytest.mark.parametrize(
    ("made", "work"),
    [
        ("", "thalweg.sort('/dev/stdin', 'sorted', record=100, memory='16MiB', progress=look)"),
        (
            "import threading; river = thalweg.River()\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "next(river.outlets[0])",
        ),
        ("sorter = thalweg.Sorter(record=8)", "[sorter.put(bytes(1 << 20)) for _ in iter(int, 1)]"),
    ],
    ids=["verb", "river", "sorter"],
)
def test_ctrl_c_ends_a_call_within_a_second_and_leaves_nothing(place: Path, made: str, work: str) -> None:
    program = ready(place, f"look = lambda *_: None\n{made}", work)
    assert program.stdin and program.stderr
    # The sort has begun once it has taken more than a pipe holds.
    if "stdin" in work:
        program.stdin.write(bytes(40_000_000))
        program.stdin.flush()
    program.send_signal(signal.SIGINT)
    began = time.monotonic()
    program.wait(10)
    assert time.monotonic() - began < 1.0
    assert b"KeyboardInterrupt" in program.stderr.read()
    assert list(place.iterdir()) == []


SILENT = """
import socket, subprocess, threading
silent = socket.create_server(("127.0.0.1", 0))
host = f"n1=127.0.0.1:{silent.getsockname()[1]}"
subprocess.run(["thalweg", "cluster", "init", "river", host, "--identity", "own", "-q"], check=True)
cluster = thalweg.Cluster("own")
accepted = []
def accept():
    accepted.append(silent.accept())
    print("connected", flush=True)
threading.Thread(target=accept, daemon=True).start()
"""


@pytest.mark.parametrize(
    "work",
    [
        "cluster.exec(['true'])",
        "cluster.status()",
        "thalweg.sort('nodes:a', 'nodes:b-{}', cluster=cluster)",
        "thalweg.Table('events', cluster=cluster)",
    ],
)
def test_ctrl_c_ends_a_call_that_waits_for_a_silent_host(place: Path, work: str) -> None:
    program = python(f"{HEARS}\n{SILENT}\n{work}")
    assert program.stdout and program.stderr
    # The call has begun when the host has a connection.
    assert program.stdout.readline() == "connected\n"
    program.send_signal(signal.SIGINT)
    began = time.monotonic()
    program.wait(10)
    assert time.monotonic() - began < 2.0
    assert "KeyboardInterrupt" in program.stderr.read()


@pytest.mark.parametrize(
    ("made", "work"),
    [
        ("table = thalweg.Table('events', cluster='own')\ntable[b'a'] = b'b'", "table[b'a']"),
        ("table = thalweg.Table('events', cluster='own')\ntable[b'a'] = b'b'", "len(table)"),
        ("reel = thalweg.Volume('films').open('reel')", "reel.read()"),
        ("films = thalweg.Volume('films')\nreel = films.open('reel', 'wb')", "reel.write(bytes(9 << 20))"),
        ("films = thalweg.Volume('films')", "films.stat('reel')"),
    ],
)
def test_ctrl_c_ends_a_request_to_a_frozen_node(
    nodes: Nodes, place: Path, monkeypatch: pytest.MonkeyPatch, made: str, work: str
) -> None:
    monkeypatch.setenv("THALWEG_IDENTITY", str(place / nodes.identity))
    subprocess.run(["thalweg", "table", "create", "events", "-q"], check=True)
    for directory in ("d", "meta"):
        os.mkdir(directory)
    on_node = f"n0:{place}"
    words = ["--stores", f"{on_node}/d", "--manager", f"{on_node}/meta", "-q"]
    subprocess.run(["thalweg", "volume", "create", "films", *words], check=True)
    with thalweg.Volume("films").open("reel", "wb") as reel:
        reel.write(bytes(9 << 20))
    program = ready(place, made, f"input()\n{work}")
    assert program.stdin and program.stderr
    nodes.signal(signal.SIGSTOP)
    program.stdin.write(b"\n")
    program.stdin.flush()
    time.sleep(0.5)
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    began = time.monotonic()
    program.wait(10)
    assert time.monotonic() - began < 2.0
    assert b"KeyboardInterrupt" in program.stderr.read()


def test_two_sorts_in_two_threads_have_their_own_memory() -> None:
    for name in ("a", "b"):
        thalweg.gen("400k", name)

    def run(name: str) -> thalweg.Receipt:
        return thalweg.sort(name, f"{name}.sorted", datamation=True, memory="16MiB")

    with ThreadPoolExecutor(2) as threads:
        receipts = list(threads.map(run, ["a", "b"]))
    assert all(receipt.holds and receipt.io.scratch.written_bytes > 0 for receipt in receipts)


def test_other_threads_run_while_a_call_works() -> None:
    thalweg.gen("1M", "records")
    done = threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    seconds = thalweg.sort("records", "sorted", datamation=True, memory="16MiB").seconds
    done.set()
    counter.join()
    # A call that kept the interpreter's lock would let this thread have a turn or two.
    assert turns > seconds * 50


def test_a_fork_of_a_process_that_only_imports_works() -> None:
    """As servers, task queues and loaders of data do, which import in the parent and work in its children."""
    code = """
        import multiprocessing, os, thalweg
        def generated(name):
            return thalweg.gen(100, name).output.records
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(generated, ["a", "b"]) == [100, 100]
        # The parent is no fork.
        assert generated("c") == 100
    """
    program = python(code)
    assert program.wait(30) == 0, program.communicate()


LIVE = """
import os, gc, sys, threading, thalweg
sorter = thalweg.Sorter(record=8, memory="16MiB", scratch=".")
sorter.put(bytes(24 << 20))
other = thalweg.Sorter(record=8, memory="16MiB")
other.put(b"12345678")
stream = other.sorted(views=True)
view = next(stream)
river = thalweg.River(1, 1)
river.inlets[0].put(b"a\\n")
films = thalweg.Volume("films")
reel = films.open("reel", "wb")
reel.write(b"frames")
table = thalweg.Table()
table["a"] = "1"
live = [sorter, other, stream, view, river, films, table]
"""


@pytest.mark.parametrize("end", [
    "del sorter, other, stream, view, river, films, table; live.clear(); gc.collect()",
    "[thing.close() for thing in (sorter, other, stream, *river.inlets, *river.outlets)]",
    "pass",
], ids=["collected", "closed", "left"])  # fmt: skip
def test_the_end_of_live_things_in_a_fork_harms_neither_process(place: Path, end: str) -> None:
    """The child's copy of a sorter waited for threads that the child does not have, and panicked."""
    os.mkdir("d")
    subprocess.run(["thalweg", "volume", "create", "films", "--stores", "d", "-q"], check=True)
    code = f"""
{LIVE}
child = os.fork()
if child == 0:
    {end}
    # Not os._exit: the interpreter ends as it does in a child of multiprocessing.
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
reel.close()
assert films.open("reel").read() == b"frames"
assert sum(len(block) for block in sorter.sorted()) == 24 << 20
assert bytes(view) == b"12345678" and table["a"] == b"1"
river.inlets[0].finish()
assert list(river.outlets[0]) == [b"a\\n"]
sorter.close()
assert sorted(os.listdir()) == ["d"], os.listdir()
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "", "")


def test_a_fork_is_refused_after_the_first_use() -> None:
    code = """
        import os, thalweg
        thalweg.doctor()
        if os.fork() == 0:
            for call in (lambda: thalweg.doctor(), lambda: thalweg.Sorter(), lambda: thalweg.River()):
                try:
                    call()
                except thalweg.ForkedError as why:
                    assert why.child == os.getpid() and why.parent == os.getppid(), why
                    assert "spawn" in str(why)
                else:
                    os._exit(1)
            os._exit(0)
        assert os.wait()[1] == 0
        thalweg.doctor()
    """
    program = python(code)
    assert program.wait(30) == 0, program.communicate()


def generated(name: str) -> int:
    return thalweg.gen(100, name).output.records


def test_multiprocessing_by_spawn_works() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(generated, ["a", "b"]) == [100, 100]


def test_an_import_is_quick_and_changes_nothing_of_the_process() -> None:
    code = """
        import os, resource, signal, sys, time
        def state():
            looked_at = ("SigBlk", "SigIgn", "SigCgt", "Threads")
            masks = [line for line in open("/proc/self/status") if line.startswith(looked_at)]
            limits = [resource.getrlimit(which) for which in range(15)]
            return limits, masks, dict(os.environ), os.listdir("/proc/self/fd")
        before, modules = state(), set(sys.modules)
        began = time.process_time()
        import thalweg
        seconds = time.process_time() - began
        assert state() == before
        assert not {"numpy", "ray", "tqdm", "fsspec"} & (set(sys.modules) - modules)
        began = time.process_time()
        import asyncio
        print(seconds / (time.process_time() - began))
    """
    # Of the time of the processor that asyncio takes; the first of the runs compiles the package.
    runs = [python(code).communicate() for _ in range(5)]
    assert all(not err for _, err in runs), runs
    assert min(float(out) for out, _ in runs) < SHARE_OF_ASYNCIO


def test_the_command_is_in_the_package(place: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["thalweg", *words], capture_output=True, text=True, cwd=place)

    assert run("gen", "100", "records").returncode == 0
    assert run("check", "--datamation", "records").returncode == 1
    wrong = run("partition")
    assert wrong.returncode == 2 and wrong.stderr.startswith("thalweg: ") and not wrong.stdout
    piped = subprocess.run("thalweg gen 1M - | head -c 10 | wc -c", shell=True, capture_output=True, text=True)
    assert (piped.stdout.strip(), piped.stderr) == ("10", "")
    install = run("cluster", "install", "--identity", ".")
    assert install.returncode == 2 and "script of a Python package" in install.stderr


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def test_a_cancelled_command_ends_as_by_a_signal(place: Path) -> None:
    read, write = os.pipe()
    program = subprocess.Popen(["thalweg", "sort", "-", "-o", "out"], stdin=read, stderr=subprocess.PIPE, text=True)
    os.close(read)
    os.write(write, b"a\n")
    assert program.stderr
    while not catches(program.pid, signal.SIGTERM):
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    assert program.wait(5) == 128 + signal.SIGINT
    assert "interrupted by signal 2" in program.stderr.read()
    os.close(write)
