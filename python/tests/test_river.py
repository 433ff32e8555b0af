"""Rivers between threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import thalweg


def carried(river: thalweg.River, inputs: Sequence[bytes]) -> list[bytes]:
    """Puts each input into its inlet and takes all outlets, each in a thread of its own."""

    def put(inlet: thalweg.Inlet, text: bytes) -> None:
        with inlet:
            for at in range(0, len(text), 999):
                inlet.put(text[at : at + 999])

    def take(outlet: thalweg.Outlet) -> bytes:
        return b"".join(outlet)

    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(put, inlet, text) for inlet, text in zip(river.inlets, inputs, strict=True)]
        taken = [threads.submit(take, outlet) for outlet in river.outlets]
        for done in puts:
            done.result(60)
        return [done.result(60) for done in taken]


LINES = [b"%d\n" % (i % 5000) for i in range(200_000)]


@pytest.mark.parametrize("pick", ["robin", "hash", "copy", "least-busy"])
def test_records_of_several_threads_arrive_once(pick: thalweg.Pick) -> None:  # type: ignore[name-defined]
    inputs = [b"".join(LINES[:100_000]), b"".join(LINES[100_000:])]
    outputs = [output.splitlines(True) for output in carried(thalweg.River(2, 2, pick=pick), inputs)]
    if pick == "copy":
        assert sorted(outputs[0]) == sorted(outputs[1]) == sorted(LINES)
        return
    assert sorted(outputs[0] + outputs[1]) == sorted(LINES)
    if pick == "robin":
        # Each record in turn; the second inlet begins with the second outlet.
        turns = LINES[:100_000:2] + LINES[100_001::2]
        assert sorted(outputs[0]) == sorted(turns)
    if pick == "hash":
        assert not set(outputs[0]) & set(outputs[1])


def test_a_function_picks_for_a_block_of_records() -> None:
    calls: list[int] = []

    def pick(records: list[bytes]) -> list[int]:
        calls.append(len(records))
        return [int(record) % 3 for record in records]

    outputs = carried(thalweg.River(1, 3, pick=pick), [b"".join(LINES).rstrip(b"\n")])
    for outlet, output in enumerate(outputs):
        assert output.splitlines(True) == [line for line in LINES if int(line) % 3 == outlet]
    assert sum(calls) == len(LINES) and len(calls) < len(LINES) / 50


def test_a_function_that_errs_stops_its_inlet() -> None:
    for pick, why in [
        (lambda records: [7 for _ in records], thalweg.NoOutlet),
        (lambda records: [], thalweg.UsageError),
        (lambda records: [-1 for _ in records], thalweg.UsageError),
        (lambda records: 1 / 0, ZeroDivisionError),
    ]:
        river = thalweg.River(1, 2, pick=pick)
        with pytest.raises(why), river.inlets[0] as inlet:
            inlet.put(b"a\n")
        with pytest.raises(thalweg.Error):
            list(river.outlets[0])


def test_an_error_of_a_function_is_told_in_words_of_python() -> None:
    for pick, kind, why in [
        (lambda records: [7], thalweg.NoOutlet, "pick chose outlet 7, and there are 2"),
        (lambda records: None, TypeError, "pick returned NoneType: return a list"),
    ]:
        with pytest.raises(kind, match=why), thalweg.River(1, 2, pick=pick).inlets[0] as inlet:
            inlet.put(b"a\n")


def test_a_function_that_uses_its_inlet_is_refused() -> None:
    def pick(records: list[bytes]) -> list[int]:
        river.inlets[0].put(b"b\n")
        return [0 for _ in records]

    river = thalweg.River(pick=pick)
    with pytest.raises(thalweg.UsageError, match="let it only choose outlets"):
        river.inlets[0].put(b"a\n")


def test_an_end_that_is_closed_ends_the_others() -> None:
    river = thalweg.River(1, 2)
    river.outlets[1].close()
    with pytest.raises(thalweg.OutletGone) as gone, river.inlets[0] as inlet:
        for _ in range(100):
            inlet.put(b"".join(LINES))
    assert gone.value.outlet == 1


def test_records_of_another_layout_keep_together_by_their_key() -> None:
    records = [b"%04d%04d" % (i % 10, i) for i in range(10_000)]
    outputs = carried(thalweg.River(1, 2, pick="hash", record=8, by="0:4"), [b"".join(records)])
    keys = [{output[at : at + 4] for at in range(0, len(output), 8)} for output in outputs]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 10


@pytest.mark.parametrize("pick", ["robin", "hash", "copy", "least-busy"])
@pytest.mark.parametrize("inlets", [1, 3])
def test_one_thread_may_put_before_it_takes(pick: thalweg.Pick, inlets: int) -> None:  # type: ignore[name-defined]
    """Each record went to a lane of its own, and only two batches of any size were in flight, so this blocked for ever."""
    river = thalweg.River(inlets, 2, pick=pick)
    lines = LINES[: 500_000 // len(LINES[-1]) // inlets]
    for inlet in river.inlets:
        inlet.put(b"".join(lines))
        inlet.finish()
    outputs = [b"".join(outlet).splitlines(True) for outlet in river.outlets]
    if pick == "copy":
        assert outputs[0] == outputs[1]
        del outputs[1]
    assert sorted(sum(outputs, [])) == sorted(lines * inlets)


FULL = """
import sys, thalweg
river = thalweg.River()
try:
    {}
except thalweg.RiverError as why:
    sys.exit(str(why))
"""


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("river.inlets[0].put(bytes(9) + b'\\n'); next(river.outlets[0])", "nothing more has been put, and this program"),
        ("river.inlets[0].put(b'123456789\\n' * 400_000)", "the river is full, and this program has no other thread"),
        ("river.inlets[0].put(b'123456789\\n' * 80_000); river.inlets[0].finish()", "it has room for 512 KiB for each"),
    ],
    ids=["take", "put", "finish"],
)
def test_a_wait_of_the_only_thread_is_an_error(use: str, why: str) -> None:
    words = [sys.executable, "-c", FULL.format(use)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and why in done.stderr, done.stderr


def test_the_main_thread_puts_as_fast_as_others() -> None:
    """It started a thread for each put, and so made 9,000 calls in a second where others made 353,000."""

    def seconds() -> float:
        river = thalweg.River()
        began = time.perf_counter()
        for _ in range(20_000):
            river.inlets[0].put(b"a\n")
        return time.perf_counter() - began

    with ThreadPoolExecutor(1) as threads:
        runs = [(seconds(), threads.submit(seconds).result()) for _ in range(5)]
    # The best of each: a busy machine slows down either.
    assert min(main for main, _ in runs) < 2 * min(other for _, other in runs)
