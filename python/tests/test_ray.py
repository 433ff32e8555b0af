"""Clusters that Ray hosts, on several raylets of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import MACHINES, eventually, ids, nodes_of, supervisor_of, up

import thalweg

NODES = 2


@pytest.fixture
def hosted(machines: Any, place: Path) -> Iterator[thalweg.Cluster]:
    import thalweg.ray

    for index in range(NODES):
        (place / f"n{index + 1}").mkdir()
    with thalweg.ray.cluster(NODES, memory="256MiB", data=f"{place}/{{}}", timeout=60) as cluster:
        for index in range(NODES):
            thalweg.gen("20k", place / f"n{index + 1}/records", start=index * 20_000)
        yield cluster
    assert nodes_of(place) == []


def sort(cluster: thalweg.Cluster | str) -> thalweg.Receipt:
    return thalweg.sort("nodes:records", "nodes:sorted-{}", datamation=True, memory="64MiB", cluster=cluster)


def command(*words: str) -> str:
    return subprocess.run(["thalweg", *words], capture_output=True, text=True, check=True).stdout


def test_verbs_run_by_name_and_by_the_command_and_beside_another_cluster(hosted: thalweg.Cluster, place: Path) -> None:
    import thalweg.ray

    up(hosted, NODES)
    receipt = sort(hosted)
    assert receipt.output.records == NODES * 20_000 and len(receipt.nodes) == NODES
    assert sort("ray:river").output == receipt.output
    assert hosted.exec(["true"]).ok
    assert str(hosted.jobs()).startswith("job ") and "nodes:sorted-{}" in str(hosted.jobs())
    on = ["--cluster", "ray:river"]
    assert "SUCCESS" in command("check", "nodes:sorted-*", "--datamation", *on)
    command("shuffle", "nodes:records", "-o", "nodes:mixed-{}", "--record", "100", "--seed", "7", *on)
    command("partition", "nodes:mixed-*", "-o", "nodes:part-{}", "--parts", "4", "--datamation", *on)
    mixed, parts = (thalweg.check(f"nodes:{name}-*", datamation=True, cluster=hosted) for name in ("mixed", "part"))
    sums = {check.proof.checksum for check in (mixed, parts)}
    assert sums == {receipt.output.checksum} and not mixed.ordered
    assert {path.name for path in place.glob("n?/part-*")} == {f"part-{part}" for part in range(4)}
    # After the first look-up nothing of Ray is needed, so nothing of it is imported.
    code = "import sys, thalweg; thalweg.Cluster('ray:river').exec(['true']); assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    key = Path(os.environ["XDG_CONFIG_HOME"], "thalweg/ray/river/key.pem")
    assert all(path.stat().st_mode & 0o077 == 0 for path in key.parent.iterdir())
    (place / "other").mkdir()
    with thalweg.ray.cluster(1, memory="256MiB", data=place / "other", timeout=60, name="other") as other:
        thalweg.gen("1k", place / "other/records")
        assert sort(other).output.records == 1_000
        # Who belongs to one is a stranger to the other.
        assert set(ids(other).values()).isdisjoint(ids(hosted).values())
        stranger = Path(os.environ["XDG_CONFIG_HOME"], "thalweg/ray/other")
        (stranger / "cluster.json").unlink()
        (stranger / "cluster.json").write_bytes((key.parent / "cluster.json").read_bytes())
        with pytest.raises(thalweg.ClusterError):
            sort(other)
    assert sort(hosted).output == receipt.output


def test_actors_that_are_killed_are_replaced(hosted: thalweg.Cluster, place: Path) -> None:
    import ray

    import thalweg.ray

    before = up(hosted, NODES)
    # The new keeper has the authority of the old one: it can replace a node.
    keeper = ray.get_actor("thalweg:river", namespace="thalweg")
    ray.kill(keeper, no_restart=False)
    nodes = nodes_of(place)
    os.kill(supervisor_of(nodes[0]), signal.SIGKILL)
    eventually(lambda: any(not os.path.exists(f"/proc/{pid}") for pid in nodes))

    def replaced() -> bool:
        # The new address comes with the new identity.
        after = ids(thalweg.ray.connect("river"))
        return len(after) == NODES and sum(after[name] != before[name] for name in after) == 1

    eventually(replaced)
    assert sort(hosted).output.records == NODES * 20_000


def test_the_only_node_is_replaced_when_its_supervisor_is_killed(machines: Any, place: Path) -> None:
    """A cluster file has at least one host, so the only one could not be dropped, and never came back."""
    import thalweg.ray

    with thalweg.ray.cluster(1, memory="256MiB", data=place, timeout=60) as cluster:
        thalweg.gen("1k", place / "records")
        before = up(cluster, 1)
        os.kill(supervisor_of(nodes_of(place)[0]), signal.SIGKILL)

        def replaced() -> bool:
            after = ids(thalweg.ray.connect("river"))
            return list(after) == ["n1"] and after != before

        eventually(replaced)
        assert [host.host for host in cluster.status().hosts] == ["n1"]
        assert sort(cluster).output.records == 1_000
    assert nodes_of(place) == []


def test_an_end_just_after_a_supervisor_was_killed_leaves_no_file(machines: Any, place: Path) -> None:
    """The supervisor that Ray starts again was ended while it began, and left its directory."""
    import thalweg.ray

    for pause in (0.0, 1.0):
        cluster = thalweg.ray.cluster(1, memory="256MiB", data=place, timeout=60)
        os.kill(supervisor_of(nodes_of(place)[0]), signal.SIGKILL)
        time.sleep(pause)
        cluster.down()
        eventually(lambda: [*Path(os.environ["TMPDIR"]).glob("thalweg-*/**")] == [], seconds=10)
        eventually(lambda: nodes_of(place) == [])


def test_a_driver_that_is_killed_leaves_the_cluster(machines: Any, place: Path) -> None:
    import thalweg.ray

    given = f"{NODES}, memory='256MiB', data='{place}', timeout=60, name='left'"
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


@pytest.mark.parametrize(
    ("nodes", "memory", "why", "large"),
    [
        (MACHINES + 1, "256MiB", "5 nodes of 1 CPU and 0.25 GiB, each .* Ray has 5 machines, 4 of them", MACHINES),
        (1, "1TiB", "1 node of 1 CPU and 1024.00 GiB, .* 0 of them large enough, and 16 CPUs", 0),
    ],
)
def test_machines_that_are_missing_are_named_within_the_time_limit_and_nothing_is_left(
    machines: Any, nodes: int, memory: str, why: str, large: int
) -> None:
    import ray

    import thalweg.ray

    # The name is free at once.
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(thalweg.NotEnoughResources, match=why) as missing:
            thalweg.ray.cluster(nodes, memory=memory, timeout=1)
        assert time.monotonic() - began < 10
    assert (missing.value.nodes, missing.value.machines, missing.value.large) == (nodes, MACHINES + 1, large)
    groups = ray.util.placement_group_table().values()
    assert all(group["state"] == "REMOVED" for group in groups)
    with pytest.raises(thalweg.RayError, match="no cluster 'river'"):
        thalweg.ray.connect()


def test_a_directory_that_a_machine_lacks_is_named_and_the_name_is_free_at_once(machines: Any, place: Path) -> None:
    import thalweg.ray

    def cluster(data: str) -> thalweg.ray.RayCluster:
        return thalweg.ray.cluster(1, memory="256MiB", data=data, timeout=60)

    with pytest.raises(thalweg.RayError, match=f"n1 on [0-9.]+ has no directory {place}/n1: create it on every"):
        cluster(f"{place}/{{}}")
    with cluster(str(place)) as made:
        assert made.exec(["true"]).ok
    for wrong in ("data", f"{place}/a,b"):
        with pytest.raises(thalweg.UsageError, match="give an absolute path without commas"):
            cluster(wrong)


ONLY_THE_KEEPER = """
thalweg.ray._ray()
keeper = ray.remote(thalweg.ray.Keeper).options(name="thalweg:left", **thalweg.ray._OPTIONS).remote("left")
ray.get(keeper.is_made.remote())
os.kill(os.getpid(), signal.SIGKILL)
"""
IN_THE_MIDDLE = """
def killed(_):
    keeper = ray.get_actor("thalweg:left", namespace="thalweg")
    while not get(keeper.is_taken.remote()):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
get, ray.get = ray.get, killed
"""


def test_what_a_driver_leaves_that_is_killed_or_interrupted_on_its_way_is_no_obstacle(
    machines: Any, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    import thalweg.ray

    def driver(code: str, ends: int) -> str:
        words = [sys.executable, "-c", f"import os, ray, signal, thalweg.ray\n{code}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == ends, done.stderr
        return done.stderr

    # Killed when the keeper is there, and nothing else.
    driver(ONLY_THE_KEEPER, -signal.SIGKILL)
    with thalweg.ray.cluster(1, memory="256MiB", data=str(place), timeout=60, name="left") as cluster:
        assert cluster.exec(["true"]).ok
    # Killed while the keeper works: it makes a cluster that is found by its name.
    driver(f"{IN_THE_MIDDLE}\nthalweg.ray.cluster(1, memory='256MiB', data='{place}', timeout=60, name='left')", -9)
    with thalweg.ray.connect("left") as cluster:
        assert cluster.exec(["true"]).ok
    # Killed while the keeper waits for machines that do not come.
    driver(f"{IN_THE_MIDDLE}\nthalweg.ray.cluster(9, timeout=8, name='left')", -9)
    with pytest.raises(thalweg.RayError, match="is being made .*connect.'left'. waits for it, .*down.'left'. ends it"):
        thalweg.ray.cluster(1, name="left")
    with (
        caplog.at_level("WARNING", "thalweg"),
        pytest.raises(thalweg.RayError, match="was not made, .*down.'left'. rem"),
    ):
        thalweg.ray.connect("left")
    assert "is being made" in caplog.text
    thalweg.ray.down("left")
    # Interrupted while it waits for machines.
    alarm = "signal.signal(signal.SIGALRM, signal.default_int_handler); signal.alarm(5)"
    said = driver(f"{alarm}\nthalweg.ray.cluster(9, timeout=60, name='left')", 1)
    assert "KeyboardInterrupt" in said and "Unhandled error" not in said, said
    for name in ("left", "never"):
        with pytest.raises(thalweg.RayError, match=f"no cluster '{name}'"):
            thalweg.ray.down(name)
    assert all(group["state"] == "REMOVED" for group in ray.util.placement_group_table().values())
    assert nodes_of(place) == []


def names_of_actors() -> list[str]:
    import ray

    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def test_clusters_that_come_and_go_leave_all_machines_alive(machines: Any, place: Path) -> None:
    import ray

    import thalweg.ray

    for _ in range(5):
        thalweg.ray.cluster(1, memory="256MiB", data=str(place), timeout=60).down()
    assert [node["Alive"] for node in ray.nodes()].count(True) == MACHINES + 1


def test_a_block_ends_its_own_cluster_and_no_later_one_of_its_name(
    machines: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import thalweg.ray
    from thalweg._hosted import ADDRESS, ADDRESS_FILE, identity

    asked: dict[str, Any] = {"memory": "256MiB", "data": str(place), "timeout": 60, "name": "again"}
    with thalweg.ray.cluster(1, **asked) as first:
        thalweg.ray.down("again")
        later = thalweg.ray.cluster(1, **asked)
    with pytest.raises(thalweg.RayError, match="'again' has been ended"):
        first.down()
    assert later.exec(["true"]).ok
    # The identity is of the cluster of Ray that was asked for it.
    monkeypatch.setenv(ADDRESS, "127.0.0.1:1")
    assert later.exec(["true"]).ok
    assert (Path(identity("again")) / ADDRESS_FILE).read_text() == "127.0.0.1:1"
    later.down()


def test_clusters_are_listed_listen_where_they_may_and_end_when_they_are_idle(machines: Any, place: Path) -> None:
    import ray

    import thalweg.ray

    address = ray.util.get_node_ip_address()
    with socket.create_server((address, 0)) as taken, socket.create_server((address, 0)) as other:
        ports = [server.getsockname()[1] for server in (taken, other)]
        with pytest.raises(thalweg.RayError, match=f"n1 finds no port free on {address} of those from {ports[0]} to"):
            thalweg.ray.cluster(1, memory="256MiB", data=str(place), timeout=60, ports=ports)
        assert thalweg.ray.list() == ()
    asked: dict[str, Any] = {"memory": "256MiB", "data": str(place), "timeout": 60}
    with thalweg.ray.cluster(1, **asked, name="busy"), socket.create_server((address, ports[0])):
        idle = thalweg.ray.cluster(1, **asked, cpus=2, ports=ports, name="idle", idle_timeout=2)
        listed = [thalweg.ray.Hosted(name, 1, cpus, 256 << 20, True) for name, cpus in (("busy", 1), ("idle", 2))]
        assert list(thalweg.ray.list()) == listed
        (host,) = idle.status().hosts
        assert host.address == f"{address}:{ports[1]}"
        # A job that takes longer than the limit keeps it.
        assert idle.exec(["sleep", "5"]).ok
        eventually(lambda: [hosted.name for hosted in thalweg.ray.list()] == ["busy"], seconds=30)
        # Ray does not restart the keeper, either.
        eventually(lambda: "thalweg:idle" not in names_of_actors(), seconds=30)
        with pytest.raises(thalweg.RayError, match="hosts no cluster 'idle'"):
            thalweg.ray.down("idle")
    assert nodes_of(place) == []
    for wrong in ({"ports": []}, {"ports": [70_000]}, {"idle_timeout": 0}):
        with pytest.raises(thalweg.UsageError, match="give at least"):
            thalweg.ray.cluster(1, **wrong)


def test_a_name_that_is_a_path_is_refused(place: Path) -> None:
    import thalweg.ray

    for name in ("../..", "", "a/b", "-a"):
        with pytest.raises(thalweg.UsageError, match="not a name for a cluster"):
            thalweg.ray.down(name)


def test_a_node_that_could_run_nothing_is_refused_at_once(place: Path) -> None:
    import thalweg.ray

    with pytest.raises(
        thalweg.TooLittleMemory, match="memory='1MiB' is too small: a node needs at least 40 M"
    ) as small:
        thalweg.ray.cluster(1, memory="1MiB")
    assert (small.value.given, small.value.needed) == (1 << 20, 40 << 20)


@pytest.mark.parametrize("asked", [{"nodes": 0}, {"nodes": 1.5}, {"nodes": 1, "cpus": 0}, {"nodes": 1, "cpus": 0.5},
                                   {"nodes": "2"}])  # fmt: skip
def test_a_cluster_has_whole_nodes_with_whole_cpus(place: Path, asked: dict[str, Any]) -> None:
    import thalweg.ray

    wrong = thalweg.UsageError if all(isinstance(count, int) for count in asked.values()) else TypeError
    with pytest.raises(wrong, match="=['0-9.]+: give a whole number from 1 on"):
        thalweg.ray.cluster(**asked)


def test_an_address_where_no_ray_listens_is_named_at_once(place: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        words = [sys.executable, "-c", "import thalweg.ray; thalweg.ray.connect()"]
        where = {**os.environ, "RAY_ADDRESS": address}
        done = subprocess.run(words, env=where, capture_output=True, text=True, timeout=60)
    assert f"RayError: Ray cannot be reached at {address}, which RAY_ADDRESS names: " in done.stderr
