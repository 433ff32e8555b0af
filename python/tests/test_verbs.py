"""The verbs: their results, and that they are those of the command."""

from __future__ import annotations

import dataclasses
import html
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import thalweg
import thalweg.verbs


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
    assert thalweg.check("sorted", datamation=True) and not thalweg.check("records", datamation=True)


@pytest.mark.parametrize("verb", ["sort", "shuffle", "merge", "join", "partition", "check", "gen", "pump", "plan"])
def test_keywords_are_the_flags_of_the_command(verb: str) -> None:
    lines = [line for line in command("help", verb, "--all").splitlines() if line.lstrip().startswith("-")]
    flags = {flag for line in lines for flag in re.findall(r"^ {2}(?:-\w, )?--([a-z-]+)", line)}
    shown_otherwise = {"json", "quiet", "help", "all", "version", "generate", "progress", "output", "detach"}
    keywords = inspect.signature(getattr(thalweg, verb)).parameters.values()
    names = {p.name.replace("_", "-") for p in keywords if p.kind is p.KEYWORD_ONLY}
    # A benchmark of the command moves random bytes to nowhere.
    added = {"progress", "cancel", "cluster"} if verb == "pump" else {"progress", "cancel"}
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


@pytest.mark.parametrize(
    ("kind", "use", "why"),
    [
        (TypeError, lambda: thalweg.sort("a", "b", unique=1), "unique=1: give True or False"),  # type: ignore[arg-type]
        (TypeError, lambda: thalweg.sort("a", "b", memory=object()), "memory=<object .*>: give a number or text"),  # type: ignore[arg-type]
        (TypeError, lambda: thalweg.sort("a", "b", memory=True), "memory=True: give a number or text"),
        (TypeError, lambda: thalweg.sort("a", "b", scratch=[1]), r"scratch=\[1\]: give a name, or a list of names"),  # type: ignore[list-item]
        (TypeError, lambda: thalweg.check("a", summary=5), "summary=5: give a name"),  # type: ignore[arg-type]
        (TypeError, lambda: thalweg.detach("sort", "a", "b", uniqe=True), "sort has no keyword 'uniqe'; did you mean unique?"),
        (TypeError, lambda: thalweg.detach("sort", "a", "b", uniqe=False), "sort has no keyword 'uniqe'"),
        (TypeError, lambda: thalweg.detach("merge", "a", "b", parts=3), "merge has no keyword 'parts'"),
        (TypeError, lambda: thalweg.detach("gen", "a", "b"), "gen has no keyword"),
        (thalweg.UsageError, lambda: thalweg.detach("srot", "a", "b"), "'srot' is no verb"),
        (thalweg.UsageError, lambda: thalweg.sort("a", "b", record="x"), "record: 'x' is not a record's length"),
        (thalweg.UsageError, lambda: thalweg.sort("a", "b", scratch=""), "scratch: the name is empty"),
        (thalweg.UsageError, lambda: thalweg.join("a", "b", "c", right_record=5), "right_record comes with record: lines"),
        (thalweg.UsageError, lambda: thalweg.sort("a", "b", nodes=2, resume=True), "resume continues .* leave out nodes"),
        (thalweg.UsageError, lambda: thalweg.check("a", summary="b"), "; give datamation, or leave out summary"),
    ],
)
def test_keywords_are_checked_against_the_table_of_options(
    kind: type[Exception], use: Callable[[], object], why: str
) -> None:
    """And messages name keywords, not flags of the command."""
    Path("a").write_text("b\na\n")
    with pytest.raises(kind, match=why) as caught:
        use()
    assert "--" not in str(caught.value)


def test_a_receipt_and_a_plan_say_what_was_asked() -> None:
    Path("words").write_text("b\na\n")
    receipt = thalweg.sort("words", "sorted", by=["0:1", "1:1:desc"], memory="32MiB", unique=True)
    words = "sort words -o sorted --by 0:1 --by 1:1:desc --memory 32MiB --unique"
    assert " ".join(receipt.asked) == words
    again = json.loads(command(*receipt.asked, "--json"))
    assert again["output"] == receipt.to_dict()["output"] and again["asked"] == list(receipt.asked)
    plan = thalweg.plan("words", "sorted")
    assert plan.asked == ("sort", "words", "-o", "sorted")
    assert str(plan).endswith("asked     sort words -o sorted")


def test_standard_streams_of_the_program_are_used_in_its_order_or_refused() -> None:
    """Records that a program sent to "-" went past what it had put in the place of sys.stdout, or before what it had
    printed."""
    code = """
import io, sys, thalweg
print("before")
thalweg.sort("-", "-")
print("after")
for name, use in [
    ("stdout", lambda: thalweg.sort("words", "-")),
    ("stdout", lambda: thalweg.gen(1, "-")),
    ("stdout", lambda: thalweg.pump("words", "-")),
    ("stdin", lambda: thalweg.check(["words", "-"])),
    ("stdin", lambda: thalweg.join("-", "words", "joined")),
]:
    was = getattr(sys, name)
    for other in (io.StringIO(), open("words"), None):
        setattr(sys, name, other)
        try:
            use()
        except thalweg.UsageError as why:
            assert f"sys.{name} is not the standard stream of this process; name a file" in str(why)
        else:
            sys.exit(f"{name} was passed over")
        finally:
            setattr(sys, name, was)
"""
    Path("words").write_text("b\na\n")
    done = subprocess.run([sys.executable, "-c", code], input="d\nc\n", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("before\nc\nd\nafter\n", "")


@pytest.mark.parametrize("count", [1000, 2_000_000])
def test_progress_ends_with_all_that_was_to_do(count: int) -> None:
    """The last that a function or a bar saw of a stage was what it had been up to 50 ms before its end."""
    thalweg.gen(count, "records")
    seen: list[tuple[str, int, int, int, int]] = []
    thalweg.sort("records", "sorted", datamation=True, memory="32MiB", progress=lambda *now: seen.append(now))
    last = {index: (done, total) for _, index, _, done, total in seen}
    assert last and all(done == total > 0 for done, total in last.values()), seen
    assert seen[-1][1] == seen[-1][2] and [now[1] for now in seen] == sorted(now[1] for now in seen)


def test_a_call_is_cancelled_from_another_thread() -> None:
    thalweg.gen("2M", "records")
    for verb in (
        lambda cancel: thalweg.sort("records", "out", datamation=True, memory="16MiB", cancel=cancel),
        lambda cancel: thalweg.pump("records", "out", limit="1MiB", cancel=cancel),
        lambda cancel: thalweg.gen("100M", "out", cancel=cancel),
    ):
        stop = thalweg.Cancel()
        timer = threading.Timer(0.2, stop.cancel)
        timer.start()
        with pytest.raises(thalweg.Cancelled, match="the call was cancelled"):
            verb(stop)
        assert timer.finished.is_set()
        with pytest.raises(thalweg.Cancelled):
            thalweg.check("records", cancel=stop)
        assert [path.name for path in Path().iterdir() if "out" in path.name] in ([], [".thalweg-pump-out"]), verb


def test_a_notebook_shows_what_sums_up_a_result() -> None:
    """The summary of a doctor was its first finding."""
    summaries = {
        thalweg.doctor: r"[0-9]+ things looked at, [0-9]+ to remedy",
        lambda: thalweg.check("words"): "2 records, not in order",
    }
    Path("words").write_text("b\na\n")
    for use, summary in summaries.items():
        result = use()
        shown = result._repr_html_()
        assert re.search(f"<summary>{summary}</summary>", shown), shown
        assert html.escape(str(result)) in shown
    jobs = thalweg.JobList(jobs=(), errors=("n1: down",))
    assert "<summary>0 jobs, 1 host not asked</summary>" in jobs._repr_html_()


@pytest.mark.parametrize(
    "work",
    [
        lambda: thalweg.join("left", "left", "disk/out", record=100, by="0:1"),
        lambda: thalweg.merge(["sorted", "sorted"], "disk/out", record=100),
        lambda: thalweg.sort("left", "disk/out", record=100),
        lambda: thalweg.shuffle("left", "disk/out", record=100, seed=1),
        lambda: thalweg.partition("left", "disk/out-{}", record=100, parts=2),
        lambda: thalweg.gen("40k", "disk/out"),
    ],
    ids=["join", "merge", "sort", "shuffle", "partition", "gen"],
)
def test_a_full_disk_is_an_output_that_is_full(work: Callable[[], object]) -> None:
    """The size of a join is not known before, so no room was reserved, and it was a FileError about its hidden file."""
    os.mkdir("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "disk"], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root mounts a small disk")
    try:
        thalweg.gen("20k", "left")
        thalweg.sort("left", "sorted", record=100)
        with pytest.raises(thalweg.OutputFull, match="disk") as full:
            work()
        assert full.value.path.name.startswith("out") and full.value.needed > 0
        assert full.value.available is not None and full.value.available < 2 << 20
        assert os.listdir("disk") == []
    finally:
        subprocess.run(["umount", "disk"], check=True)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda: thalweg.sort("s3://bucket/x", "out"), "'s3://bucket/x': s3:// cannot be read or written yet"),
        (lambda: thalweg.sort("words", "gs://bucket/x"), "'gs://bucket/x': gs:// cannot be read or written yet"),
        (lambda: thalweg.pump("https://example.org/x", "out"), "https:// cannot be read or written yet"),
        (lambda: thalweg.check("file:///tmp/x"), "write the path alone, without file://"),
        (lambda: thalweg.gen(1, "s3://bucket/x"), "s3:// cannot be read"),
        (lambda: thalweg.join("words", "s3://bucket/x", "out"), "s3:// cannot be read"),
        (lambda: thalweg.partition("words", "s3://bucket/{}", parts=2), "s3:// cannot be read"),
    ],
)
def test_a_url_is_named_as_not_there_yet(use: Callable[[], object], why: str) -> None:
    Path("words").write_text("b\na\n")
    with pytest.raises(thalweg.UsageError, match=why):
        use()
