"""Runs each test in a directory and a home of its own, and reports to ./test as a Rust test program does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
