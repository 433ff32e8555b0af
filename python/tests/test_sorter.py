"""Sorters: what they take, what they give, and what is left of them."""

from __future__ import annotations

import array
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        numpy.array([0x0A64], "<u2").view("u1"),
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
        sorter.put(numpy.zeros(2, [("COUNT", ">u4"), ("PLACE", ">u4")]))
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
        stream = sorter.sorted(views=True)
        held = [next(stream)]
        assert held[0].readonly and held[0].nbytes >= 1000
        with pytest.raises(thalweg.BlocksHeld):
            held.extend(stream)
        held.clear()
        assert sum(block.nbytes for block in stream) > 0
    # A block outlives its sorter.
    with thalweg.Sorter(record=8, memory="16MiB") as sorter:
        sorter.put(b"12345678")
        last = next(sorter.sorted(views=True))
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


def test_all_blocks_may_be_kept_unless_they_are_views() -> None:
    """A list of the sorted blocks raised BlocksHeld at the ninth."""
    with thalweg.Sorter(record=8, memory="16MiB", scratch=".") as sorter:
        sorter.put(bytes(32 << 20))
        stream = sorter.sorted()
        blocks = list(stream)
        assert len(blocks) > 8 and {type(block) for block in blocks} == {bytes}
        assert sum(map(len, blocks)) == 32 << 20 and stream.receipt().holds


@pytest.mark.parametrize("layout", [{}, {"prefixed": True}, {"record": 6}])
@pytest.mark.parametrize("count", [0, 1, 1024, 100_003])
def test_records_are_put_and_taken_one_by_one(layout: dict[str, Any], count: int) -> None:
    records = [b"%06d" % (i * 7919 % 100_003) for i in range(count)]
    with thalweg.Sorter(memory="16MiB", **layout) as sorter:
        sorter.extend(iter(records))
        stream = sorter.sorted()
        assert list(stream.records()) == sorted(records)
        assert stream.receipt().output.records == count


def test_what_an_iterable_gave_before_it_failed_is_put() -> None:
    def some() -> Iterator[bytes]:
        yield from (b"b", b"a")
        raise ZeroDivisionError

    with thalweg.Sorter(memory="16MiB") as sorter:
        with pytest.raises(ZeroDivisionError):
            sorter.extend(some())
        assert list(sorter.sorted().records()) == [b"a", b"b"]


def test_records_that_are_not_whole_are_refused() -> None:
    for layout, wrong, kind in (
        ({}, [b"a\nb"], thalweg.UsageError),
        ({"record": 4}, [b"abcde"], thalweg.UsageError),
        ({}, b"abc", TypeError),
        ({}, ["text"], TypeError),
    ):
        with thalweg.Sorter(memory="16MiB", **layout) as sorter, pytest.raises(kind):
            sorter.extend(wrong)


PAIR = [("key", "S4"), ("count", "<u4")]


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (numpy.arange(4), {}),
        (numpy.arange(4, dtype="u8"), {}),
        (numpy.arange(4, dtype=">i8"), {}),
        (numpy.arange(4, dtype="f8"), {}),
        (numpy.arange(8, dtype="i1"), {}),
        (numpy.arange(4).astype("M8[s]"), {}),
        (numpy.arange(4).astype("m8[s]"), {}),
        (numpy.arange(8, dtype="<u4").reshape(4, 2), {"by": "6:2"}),
        (numpy.zeros(2, PAIR), {}),
        (numpy.zeros(2, PAIR), {"by": "3:2"}),
        (numpy.zeros(2, [("pair", [("a", "<u2"), ("b", "S2")], 2)]), {}),
        (array.array("d", [1.0]), {}),
        (numpy.array(["ab"]), {}),
    ],
    ids=repr,
)
def test_numbers_that_would_be_sorted_by_their_bytes_are_refused(array: Any, options: dict[str, Any]) -> None:
    """Numbers with a sign, or with their lowest byte first, came out in the order of their bytes."""
    with thalweg.Sorter(record=8, memory="16MiB", **options) as sorter:
        with pytest.raises(TypeError, match=r"sorted by their bytes; put numbers .*astype\('>u8'\)"):
            sorter.put(array)
        with pytest.raises(TypeError, match="sorted by their bytes"):
            sorter.extend([array])


def test_numbers_whose_bytes_are_in_order_are_sorted_by_value() -> None:
    random = numpy.random.default_rng(3)
    signed = random.integers(-(2**63), 2**63, 1000)
    small = random.integers(0, 2**32, 1000).astype(">u4")
    with thalweg.Sorter(record=8, memory="16MiB") as sorter:
        sorter.put((signed.view("u8") ^ 2**63).astype(">u8"))
        found = numpy.frombuffer(b"".join(sorter.sorted()), ">u8").astype("u8") ^ 2**63
    assert (found.view("i8") == numpy.sort(signed)).all()
    with thalweg.Sorter(record=4, memory="16MiB") as sorter:
        sorter.put(small)
        assert (numpy.frombuffer(b"".join(sorter.sorted()), ">u4") == numpy.sort(small)).all()
    # What is not in the key may be anything.
    with thalweg.Sorter(record=8, by="0:4", memory="16MiB") as sorter:
        sorter.put(numpy.array([(b"b", 1), (b"a", 2)], PAIR))
        assert numpy.frombuffer(b"".join(sorter.sorted()), PAIR)["count"].tolist() == [2, 1]
