"""Commands and transfers on the nodes of a cluster."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest
from conftest import Nodes

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
