"""Runs each test in a directory and a home of its own, and reports to ./test as a Rust test program does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which a test runs."""
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / ".home"))
    monkeypatch.delenv("THALWEG_IDENTITY", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield work


class Nodes(NamedTuple):
    """Nodes of a cluster on this machine."""

    identity: str
    """The directory of their owner's identity."""
    keepers: list[subprocess.Popen[bytes]]
    """The processes that start the nodes again if they end."""

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the nodes, but not to their keepers. SIGSTOP has stopped all their threads in the end."""
        for keeper in (keeper for keeper in self.keepers if keeper.poll() is None):
            for node in Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split():
                os.kill(int(node), number)
                while number == signal.SIGSTOP and not _is_stopped(int(node)):
                    time.sleep(0.01)


def _is_stopped(process: int) -> bool:
    """Whether all threads of a process are stopped."""
    try:
        states = [thread.read_text() for thread in Path(f"/proc/{process}/task").glob("*/stat")]
    except FileNotFoundError:  # A thread has ended meanwhile.
        return False
    return all(state.rpartition(")")[2].split()[0] in "TtZ" for state in states)


@pytest.fixture
def nodes(place: Path) -> Iterator[Nodes]:
    """Two nodes of a cluster, n0 and n1."""
    with running() as nodes:
        yield nodes


@contextlib.contextmanager
def running(before: Sequence[str] = ()) -> Iterator[Nodes]:
    """The same; the words before the command of n1 start it."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hosts = [f"n{i}=127.0.0.1:{server.getsockname()[1]}" for i, server in enumerate(sockets)]
    for server in sockets:
        server.close()
    subprocess.run(["thalweg", "cluster", "init", "river", *hosts, "--identity", "own", "-q"], check=True)
    keepers = [
        subprocess.Popen(
            [*(before if i else ()), "thalweg", "node", "run", "--identity", f"own/hosts/n{i}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    nodes = Nodes("own", keepers)
    try:
        for keeper in keepers:
            assert keeper.stdout and keeper.stdout.readline()
        yield nodes
    finally:
        nodes.signal(signal.SIGCONT)
        for keeper in keepers:
            keeper.send_signal(signal.SIGTERM)
            keeper.wait()


@pytest.fixture(scope="session")
def machines() -> Iterator[Any]:
    """The Ray cluster that all tests of Ray use."""
    pytest.importorskip("ray", reason="there is no Ray")
    if os.cpu_count() == 1:
        pytest.skip("Ray needs more than one core")
    from hosting import raylets

    yield from raylets()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the lines that ./test reads: names of failed tests, and counts. It subtracts skipped tests itself."""
    stats = terminalreporter.stats
    failed = sorted({report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])})
    skipped = stats.get("skipped", [])
    passed = len(stats.get("passed", [])) + len(skipped)
    if failed:
        terminalreporter.write("\nfailures:\n" + "".join(f"    {name}\n" for name in failed) + "\n")
    verdict = "FAILED" if failed else "ok"
    terminalreporter.write(f"test result: {verdict}. {passed} passed; {len(failed)} failed; 0 ignored\n")
    if "THALWEG_SKIPPED" in os.environ:
        with open(os.environ["THALWEG_SKIPPED"], "a") as file:
            for report in skipped:
                file.write(f"{report.nodeid.replace(' ', '_')} {report.longrepr[2]}\n")
