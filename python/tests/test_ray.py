"""Clusters that Ray hosts, on several raylets of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import thalweg

pytest.importorskip("ray", reason="there is no Ray")
if os.cpu_count() == 1:
    pytest.skip("Ray needs more than one core", allow_module_level=True)

NODES = 2


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster of a head without CPUs and of machines with one CPU and 512 MiB each."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DISABLE_IMPORT_WARNING="1")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    session = cluster.head_node.get_session_dir_path()
    for _ in range(NODES):
        cluster.add_node(num_cpus=1, memory=512 << 20, object_store_memory=80 << 20)
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    shutil.rmtree(session, ignore_errors=True)
    assert [path for path in Path(tempfile.gettempdir()).glob("thalweg-*-n?")] == []
    del os.environ["RAY_ADDRESS"]


@pytest.fixture
def hosted(raylets: Any, place: Path) -> Iterator[thalweg.Cluster]:
    import thalweg.ray

    with thalweg.ray.cluster(NODES, memory="256MiB", data=f"{place}/{{}}", timeout=60) as cluster:
        for index in range(NODES):
            thalweg.gen("20k", place / f"n{index + 1}/records", start=index * 20_000)
        yield cluster
    assert nodes_of(place) == []


def nodes_of(place: Path) -> list[int]:
    """The processes of nodes whose files are below a directory."""
    found = subprocess.run(["pgrep", "-f", "node run --identity"], capture_output=True, text=True).stdout.split()

    def directory(pid: str) -> str:
        try:
            return os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            return ""  # The process has ended since, or is another user's.

    return [int(pid) for pid in found if directory(pid).startswith(str(place))]


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def sort(cluster: thalweg.Cluster | str) -> thalweg.Receipt:
    return thalweg.sort("nodes:records", "nodes:sorted-{}", datamation=True, memory="64MiB", cluster=cluster)


def all_up(cluster: thalweg.Cluster) -> bool:
    return all(host.status is not None for host in cluster.status().hosts)


def test_it_sorts_by_name_and_by_the_command(hosted: thalweg.Cluster) -> None:
    eventually(lambda: all_up(hosted))
    receipt = sort(hosted)
    assert receipt.output.records == NODES * 20_000 and len(receipt.nodes) == NODES
    assert sort("ray:river").output == receipt.output
    assert hosted.exec(["true"]).ok
    words = ["check", "nodes:sorted-*", "--datamation", "--cluster", "ray:river"]
    assert "SUCCESS" in subprocess.run(["thalweg", *words], capture_output=True, text=True, check=True).stdout
    # After the first look-up nothing of Ray is needed, so nothing of it is imported.
    code = "import sys, thalweg; thalweg.Cluster('ray:river').exec(['true']); assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    key = Path(os.environ["XDG_CONFIG_HOME"], "thalweg/ray/river/key.pem")
    assert all(path.stat().st_mode & 0o077 == 0 for path in key.parent.iterdir())


def test_an_actor_that_is_killed_takes_its_node_along_and_is_replaced(hosted: thalweg.Cluster, place: Path) -> None:
    import thalweg.ray

    eventually(lambda: all_up(hosted))
    before = {host.host: host.status.id for host in hosted.status().hosts if host.status}
    nodes = nodes_of(place)
    supervisors = subprocess.run(["pgrep", "-f", "ray::Supervisor"], capture_output=True, text=True).stdout.split()
    os.kill(int(supervisors[0]), signal.SIGKILL)
    eventually(lambda: any(not os.path.exists(f"/proc/{pid}") for pid in nodes))

    def replaced() -> bool:
        # The new address comes with the new identity.
        now = thalweg.ray.connect("river")
        after = {host.host: host.status.id for host in now.status().hosts if host.status}
        return len(after) == NODES and sum(after[name] != before[name] for name in after) == 1

    eventually(replaced, 60)
    assert sort(hosted).output.records == NODES * 20_000


def test_a_driver_that_is_killed_leaves_the_cluster(raylets: Any, place: Path) -> None:
    import thalweg.ray

    given = f"{NODES}, memory='256MiB', data='{place}/{{}}', timeout=60, name='left'"
    code = f"import thalweg.ray; thalweg.ray.cluster({given})"
    driver = subprocess.Popen([sys.executable, "-c", code + "; print('up', flush=True); input()"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    driver.kill()
    driver.wait()
    cluster = thalweg.ray.connect("left")
    assert cluster.exec(["true"]).ok
    cluster.down()
    assert nodes_of(place) == []
    with pytest.raises(thalweg.RayError, match="no cluster 'left'"):
        thalweg.ray.connect("left")


def test_machines_that_are_missing_are_named_and_nothing_is_left(raylets: Any) -> None:
    import ray

    import thalweg.ray

    began = time.monotonic()
    with pytest.raises(thalweg.NotEnoughResources, match="need 5 machines of Ray with 1 CPUs") as missing:
        thalweg.ray.cluster(5, memory="256MiB", timeout=1)
    assert time.monotonic() - began < 10
    assert (missing.value.nodes, missing.value.machines, missing.value.large) == (5, NODES + 1, NODES)
    groups = ray.util.placement_group_table().values()
    assert all(group["state"] == "REMOVED" for group in groups)
