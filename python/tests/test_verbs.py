"""The verbs: their results, and that they are those of the command."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest

import thalweg
import thalweg.verbs
from thalweg import _words


def command(*words: str) -> str:
    return subprocess.run(["thalweg", *words], check=True, capture_output=True, text=True).stdout


def test_a_call_does_what_the_command_does() -> None:
    thalweg.gen("20k", "records")
    receipt = thalweg.sort("records", "sorted", record=100, by="0:10", memory="64MiB")
    printed = json.loads(command("sort", "records", "-o", "same", "--datamation", "--memory", "64MiB", "--json"))
    assert Path("sorted").read_bytes() == Path("same").read_bytes()
    assert receipt.to_dict().keys() == printed.keys()
    assert receipt.to_dict()["output"] == printed["output"]
    assert receipt.output.checksum == int(printed["output"]["checksum"], 16)
    assert thalweg.check("sorted", datamation=True).ordered


@pytest.mark.parametrize("verb", ["sort", "shuffle", "merge", "join", "partition", "check", "gen", "pump", "plan"])
def test_keywords_are_the_flags_of_the_command(verb: str) -> None:
    lines = [line for line in command("help", verb).splitlines() if line.lstrip().startswith("-")]
    flags = {flag for line in lines for flag in re.findall(r"^ {2}(?:-\w, )?--([a-z-]+)", line)}
    shown_otherwise = {"json", "quiet", "help", "version", "generate", "progress", "output", "detach"}
    keywords = inspect.signature(getattr(thalweg, verb)).parameters.values()
    names = {p.name.replace("_", "-") for p in keywords if p.kind is p.KEYWORD_ONLY}
    # A benchmark of the command moves random bytes to nowhere.
    added = {"progress", "cluster"} if verb == "pump" else {"progress"}
    assert names - added == flags - shown_otherwise - {"no-disk"}


def test_what_a_transfer_left_out_is_in_its_result() -> None:
    Path("from/a").mkdir(parents=True)
    Path("to/file").mkdir(parents=True)
    for name in ("file", "a/b.o", "c"):
        Path("from", name).write_text(name)
    with pytest.warns(UserWarning, match="copied but for 1 of 4 entries"):
        receipt = thalweg.pump("from/", "to", exclude="*.o")
    assert (receipt.left_out, receipt.excluded, receipt.holds) == (1, 1, True)
    assert [(error.kind, Path(error.path).name) for error in receipt.errors] == [("destination", "file")]
    told = thalweg.pump("from/", "to", filter=["P file"], include=["c"], exclude=["*"], delete=True, dry_run=True)
    assert sorted((item.change, item.path) for item in told.items) == [("changed", "c")]
    assert not Path("to/a/b.o").exists() and Path("to/file").is_dir()
    with pytest.raises(thalweg.Error, match="is a directory"):
        thalweg.pump("from/", "to", strict=True)


def test_the_peak_of_a_receipt_is_that_of_the_program_and_is_not_promised() -> None:
    """A program that held memory of its own read "peak 426 MiB, promised at most 34 MiB"."""
    thalweg.gen("1k", "records")
    receipt = thalweg.sort("records", "sorted", datamation=True, memory="32MiB")
    assert "\nmemory    peak of the process " in str(receipt) and "promised" not in str(receipt)
    assert receipt.memory.limit_bytes == 32 << 20


def test_a_key_of_several_parts_is_text_or_a_list() -> None:
    Path("pairs").write_text("a1\nb1\na2\n")
    for by in ("1:1:desc,0:1", ["1:1:desc", "0:1"]):
        thalweg.sort("pairs", "sorted", by=by)
        assert Path("sorted").read_text().split() == ["a2", "a1", "b1"]


def test_results_are_frozen_readable_and_complete() -> None:
    thalweg.gen("1k", "records")
    receipt = thalweg.sort("records", "sorted", datamation=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt.holds = False  # type: ignore[misc]
    assert str(receipt).startswith("sorted 1 000 records, 100 000 bytes, in ")
    assert "<summary>sorted 1 000 records" in receipt._repr_html_()
    parts = thalweg.partition("records", "part-{}", parts=2, datamation=True)
    assert [part["records"] for part in parts.to_dict()["parts"]] == [part.records for part in parts.parts]
    assert "part-0" in str(parts)
    plan = thalweg.plan("records", "sorted", datamation=True)
    assert isinstance(plan, thalweg.Plan) and str(plan) and plan.to_dict()["method"] == plan.method
    assert str(thalweg.pump("records", "copy")).startswith("moved 1 file")
    assert "io_uring" in str(thalweg.doctor())


def test_names_may_be_paths_bytes_and_no_text() -> None:
    odd = Path("caf\udce9 -x")
    odd.write_bytes(b"b\na\n")
    thalweg.sort(odd, b"sorted")
    assert Path("sorted").read_bytes() == b"a\nb\n"
    Path("--unique").write_bytes(b"b\nb\n")
    assert thalweg.sort(["--unique", odd], "all").output.records == 4


def test_nodes_of_this_process_give_the_same_output() -> None:
    thalweg.gen("20k", "records")
    thalweg.sort("records", "one", datamation=True)
    thalweg.sort("records", "three", datamation=True, nodes=3)
    assert Path("one").read_bytes() == Path("three").read_bytes()


def test_progress_reaches_a_function_and_its_error_stops_the_call() -> None:
    thalweg.gen("2M", "records")
    seen: list[tuple[str, int]] = []

    def look(stage: str, index: int, stages: int, done: int, total: int) -> None:
        seen.append((stage, done))
        if done > 0:
            raise LookupError("enough")

    with pytest.raises(LookupError):
        thalweg.sort("records", "sorted", datamation=True, memory="16MiB", progress=look)
    assert seen and not Path("sorted").exists()


def test_progress_is_shown_by_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    thalweg.gen("2M", "records", progress=True)
    assert "1/1" in capsys.readouterr().err


def test_keywords_that_are_true_or_false_are_flags_without_a_value() -> None:
    verbs = [verb for name, verb in inspect.getmembers(thalweg.verbs, inspect.isfunction) if name in thalweg.__all__]
    keywords = [keyword for verb in verbs for keyword in inspect.signature(verb).parameters.values()]
    assert len(verbs) > 9
    assert {keyword.name for keyword in keywords if keyword.annotation == "bool"} | {"detach"} == _words.SWITCHES
