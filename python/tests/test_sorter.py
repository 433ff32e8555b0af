"""Sorters: what they take, what they give, and what is left of them."""

from __future__ import annotations

import array
import mmap
from pathlib import Path

import pytest

import thalweg

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("record", [8, 100])
@pytest.mark.parametrize("count", [0, 1, 1000, 400_000])
def test_numpy_arrays_come_back_sorted_in_blocks_of_whole_records(record: int, count: int) -> None:
    random = numpy.random.default_rng(7)
    records = random.integers(0, 256, (count, record), dtype=numpy.uint8)
    with thalweg.Sorter(record=record, memory="16MiB", scratch=".") as sorter:
        for piece in numpy.array_split(records, 7):
            sorter.put(piece)
        stream = sorter.sorted()
        blocks = [numpy.frombuffer(block, dtype=f"V{record}").copy() for block in stream]
        receipt = stream.receipt()
    whole = numpy.concatenate([numpy.empty(0, f"V{record}"), *blocks])
    assert whole.tobytes() == b"".join(sorted(row.tobytes() for row in records))
    assert receipt.holds and receipt.output.records == count
    # What did not fit was in scratch, and is gone.
    assert (receipt.io.scratch.written_bytes > 0) == (count * record > 16 << 20)
    assert list(Path().iterdir()) == []


def test_anything_with_the_buffer_protocol_can_be_put() -> None:
    sources = [
        b"b\n",
        bytearray(b"c\n"),
        memoryview(b"xa\n")[1:],
        array.array("b", b"e\n"),
        numpy.array([0x0A64], "<u2"),
    ]
    with mmap.mmap(-1, 2) as mapped:
        mapped.write(b"f\n")
        with thalweg.Sorter(memory="16MiB") as sorter:
            for source in [*sources, mapped]:
                sorter.put(source)
            assert b"".join(sorter.sorted()) == b"a\nb\nc\nd\ne\nf\n"
    for refused, why in (
        (numpy.zeros(10, "u1")[::2], "contiguous"),
        (numpy.array([{}, None]), "references to objects"),
        (numpy.zeros(2, [("count", "u4"), ("OBJECT", "O")]), "references to objects"),
    ):
        with thalweg.Sorter(memory="16MiB") as sorter, pytest.raises(TypeError, match=why):
            sorter.put(refused)
    with thalweg.Sorter(memory="16MiB", record=8) as sorter:
        sorter.put(numpy.zeros(2, [("COUNT", "u4"), ("PLACE", "u4")]))
        assert b"".join(sorter.sorted()) == bytes(16)


def test_lines_and_prefixed_records_are_cut_nowhere() -> None:
    words = [b"%d" % (i * 7919 % 100_003) for i in range(100_003)]
    with thalweg.Sorter(memory="16MiB") as lines:
        lines.put(b"\n".join(words))
        blocks = [bytes(block) for block in lines.sorted()]
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks).split() == sorted(words)
    with thalweg.Sorter(prefixed=True, memory="16MiB") as prefixed:
        prefixed.put(b"".join(len(word).to_bytes(4, "little") + word for word in words))
        got: list[bytes] = []
        for block in prefixed.sorted():
            while block:
                length = int.from_bytes(block[:4], "little")
                got.append(bytes(block[4 : 4 + length]))
                block = block[4 + length :]
    assert got == sorted(words)


def test_blocks_are_not_copied_and_only_so_many_may_be_held() -> None:
    with thalweg.Sorter(record=8, memory="16MiB", scratch=".") as sorter:
        sorter.put(bytes(32 << 20))
        stream = sorter.sorted()
        held = [next(stream)]
        assert held[0].readonly and held[0].nbytes >= 1000
        with pytest.raises(thalweg.BlocksHeld):
            held.extend(stream)
        held.clear()
        assert sum(block.nbytes for block in stream) > 0
    # A block outlives its sorter.
    with thalweg.Sorter(record=8, memory="16MiB") as sorter:
        sorter.put(b"12345678")
        last = next(sorter.sorted())
    assert bytes(last) == b"12345678"


def test_scratch_that_is_missing_is_refused_at_once() -> None:
    with pytest.raises(thalweg.FileError, match="nowhere"):
        thalweg.Sorter(record=8, scratch="nowhere")


def test_a_sorter_that_is_used_up_says_so() -> None:
    with thalweg.Sorter(record=8, memory="16MiB") as sorter:
        sorter.put(b"1234567")
        with pytest.raises(thalweg.PutCutShort) as caught:
            sorter.sorted()
        assert (caught.value.bytes, caught.value.record_bytes) == (7, 8)
        for use in (sorter.sorted, lambda: sorter.put(b"")):
            with pytest.raises(thalweg.UsageError, match="make a new one"):
                use()
