"""Machines of Ray that are lost while a cluster works on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosting import eventually, ids, machine, nodes_of, supervisor_of, up

import thalweg

NODES = 3
RECORDS = 1_500_000


def raylet_of(machines: Any, node: str) -> Any:
    """The raylet with the bundle of a node."""
    import ray

    groups = ray.util.placement_group_table().values()
    bundles = next(group["bundles_to_node_id"] for group in groups if group["state"] == "CREATED")
    id = bundles[int(node.removeprefix("n")) - 1]
    return next(raylet for raylet in machines.worker_nodes if raylet.node_id == id)


def killing(machines: Any, place: Path, node: str) -> Callable[[str, int, int, int, int], None]:
    """A function that ends the processes of Ray on the machine of a node once a sort has begun. Until the node has
    ended, too, another one stands still, so that the sort does not end before."""
    raylet, supervisor = raylet_of(machines, node), supervisor_of(nodes_of(place / node)[0])
    lost, other = (nodes_of(place / name) for name in (node, "n1"))
    killed: list[str] = []

    def look(stage: str, index: int, stages: int, done: int, total: int) -> None:
        if done > 0 and not killed:
            killed.append(stage)
            for pid in other:
                os.kill(pid, signal.SIGSTOP)
            machines.remove_node(raylet, allow_graceful=False)
            os.kill(supervisor, signal.SIGKILL)
            eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in lost))
            for pid in other:
                os.kill(pid, signal.SIGCONT)

    return look


def test_a_machine_that_is_lost_in_mid_sort_is_done_without_and_replaced(machines: Any, place: Path) -> None:
    import thalweg.ray

    thalweg.gen(RECORDS, place / "records")
    for index in range(NODES):
        (place / f"n{index + 1}").mkdir()
    with thalweg.ray.cluster(NODES, memory="256MiB", data=f"{place}/{{}}", timeout=60) as cluster:
        before = up(cluster, NODES)

        def sort(inputs: str | Path, output: str | Path, node: str) -> thalweg.Receipt:
            look = killing(machines, place, node)
            return thalweg.sort(inputs, output, datamation=True, memory="64MiB", cluster=cluster, progress=look)

        # All nodes see the input, so the others sort it.
        receipt = sort(place / "records", place / "sorted", "n2")
        assert receipt.output.records == RECORDS and receipt.holds and len(receipt.nodes) == NODES - 1
        # Ray places the node on the machine that is free, with another key.
        eventually(lambda: len(ids(thalweg.ray.connect())) == NODES)
        after = ids(cluster)
        assert {name for name in after if after[name] != before[name]} == {"n2"}
        assert thalweg.check(place / "sorted", datamation=True).ordered

        for name in before:
            thalweg.pump(place / "records", place / name / "records")
        with pytest.raises(thalweg.Error) as lost:
            sort("nodes:records", "nodes:sorted-{}", "n3")
        assert "n3" in str(lost.value) and len(str(lost.value).splitlines()) == 1
        left = [path.name for name in ("n1", "n2") for path in (place / name).iterdir() if path.name != "records"]
        assert left == []
        # There is no machine for it until one is added.
        assert len(ids(cluster)) == NODES - 1
        machine(machines)
        eventually(lambda: len(ids(thalweg.ray.connect())) == NODES)
    assert nodes_of(place) == []
    machine(machines)


def left() -> set[int]:
    """The processes of actors whose files are still there."""
    return {int(path.name.rpartition("-")[0].rpartition("-")[2]) for path in Path(os.environ["TMPDIR"]).glob("thalweg-*")}


def test_no_key_stays_where_ray_has_killed_its_actor(machines: Any, place: Path) -> None:
    """Ray kills the node with its supervisor, so it could not remove its key; and a keeper left that of the authority."""
    import ray

    import thalweg.ray

    # What remains of the last test goes when its processes have ended.
    eventually(lambda: not left(), seconds=10)
    cluster = thalweg.ray.cluster(1, memory="256MiB", data=place, timeout=60)
    assert len(left()) == 2
    keeper = ray.get_actor("thalweg:river", namespace="thalweg")
    supervisor = supervisor_of(nodes_of(place)[0])
    (held,) = left() - {supervisor}
    os.kill(held, signal.SIGKILL)
    eventually(lambda: held not in left() and len(left()) == 2)
    assert ray.get(keeper.is_made.remote())
    machines.remove_node(raylet_of(machines, "n1"), allow_graceful=False)
    cluster.down()
    eventually(lambda: not left(), seconds=10)
    assert nodes_of(place) == []
    machine(machines)
