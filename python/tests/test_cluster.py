"""Commands and transfers on the nodes of a cluster."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest
from conftest import Nodes, running

import thalweg


def test_a_command_that_fails_on_a_host_raises_if_it_is_checked(nodes: Nodes) -> None:
    """A host that cannot be reached wrote nothing and was not among the outputs, so a loop over them hid it."""
    cluster = thalweg.Cluster(nodes.identity)
    assert cluster.exec(["echo", "here"], check=True).outputs["n1"].out == b"here\n"
    assert cluster.exec(["sleep", "9"], detach=True, check=True).outputs.keys() == {"n0", "n1"}
    with pytest.raises(thalweg.CommandFailed, match="^n0: status 3; n1: status 3$"):
        cluster.exec(["sh", "-c", "exit 3"], check=True)
    with pytest.raises(thalweg.CommandFailed, match="^n0: .*no such program.*; n1: .*no such program"):
        cluster.exec(["no such program"], check=True)
    nodes.keepers[1].send_signal(signal.SIGTERM)
    nodes.keepers[1].wait()
    executed = cluster.exec(["echo", "here"])
    assert not executed.ok and list(executed.outputs) == ["n0", "n1"]
    assert executed.outputs["n1"] == thalweg.HostOutput()
    with pytest.raises(thalweg.CommandFailed, match="^n1: .*cannot reach") as caught:
        cluster.exec(["echo", "here"], check=True)
    assert caught.value.executed.outputs["n0"].out == b"here\n"
    assert pickle.loads(pickle.dumps(caught.value)).executed == caught.value.executed


def test_files_are_pumped_from_the_hosts_of_a_cluster(nodes: Nodes, place: Path) -> None:
    thalweg.gen("1k", "records")
    for cluster in (thalweg.Cluster(nodes.identity), thalweg.Cluster("river", identity=nodes.identity)):
        assert thalweg.pump(f"n1:{place}/records", "copy", cluster=cluster).bytes == 100_000
    assert thalweg.pump("records", f"n0:{place}/other", cluster=nodes.identity).bytes == 100_000


def test_an_identity_of_another_cluster_is_refused(nodes: Nodes, place: Path) -> None:
    """Commands ran on the cluster of the identity, whatever cluster was named."""
    lake = thalweg.Cluster("lake", identity=nodes.identity)
    uses = [lambda: lake.exec(["touch", place / "touched"]), lake.status, lake.jobs, lambda: lake.cancel("a")]
    for use in [*uses, lambda: thalweg.pump("n1:/x", "copy", cluster=lake)]:
        with pytest.raises(thalweg.ClusterError, match="the identity in own is of cluster river, not of lake"):
            use()
    assert not (place / "touched").exists()


def test_nodes_check_files_that_all_of_them_see(nodes: Nodes, place: Path) -> None:
    """A cluster refused to check what it had just sorted."""
    thalweg.gen("200k", "records")
    thalweg.sort("records", "sorted", datamation=True, cluster=nodes.identity)
    Path("words").write_text("".join(f"{number % 7} {number}\n" for number in range(600_000)))
    for files, options in ((["sorted"], {"datamation": True}), (["records", "sorted"], {"record": 100}), ("words", {})):
        here = thalweg.check(files, **options)
        there = thalweg.check(files, cluster=nodes.identity, **options)
        assert (there.proof, there.ordered, there.first_unordered) == (here.proof, here.ordered, here.first_unordered)
        assert [node.host for node in there.nodes] == ["n0", "n1"]
        # A record across the border between two nodes is in no node's proof.
        assert here.proof.records - sum(node.proof.records for node in there.nodes) in (0, 1)
    assert all(node.proof.records > 0 for node in thalweg.check("words", cluster=nodes.identity).nodes)
    with pytest.raises(thalweg.UsageError, match="either all inputs have nodes: before their names, or none"):
        thalweg.check(["nodes:a", "sorted"], cluster=nodes.identity)
    with pytest.raises(thalweg.Error, match="nothing"):
        thalweg.check("nothing", cluster=nodes.identity)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a directory in the place of another")
def test_nodes_that_see_different_files_check_none_of_them(place: Path) -> None:
    for name, count in (("shared", 1000), ("other", 2000)):
        os.mkdir(name)
        thalweg.gen(count, f"{name}/records")
    elsewhere = ["unshare", "-m", "sh", "-c", 'mount --bind other shared && exec "$@"', "sh"]
    with running(elsewhere) as nodes, pytest.raises(thalweg.DifferentInputs, match="do not see the same files"):
        thalweg.check("shared/records", datamation=True, cluster=nodes.identity)
