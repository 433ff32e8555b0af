"""What the tests of clusters that Ray hosts share: raylets of this machine, and how to wait."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import thalweg

MACHINES = 4
"""Raylets that hosts of the guide's examples fit on: each pretends to have 4 CPUs and 4 GiB."""


def raylets() -> Iterator[Any]:
    """A Ray cluster of a head without CPUs and of :data:`MACHINES`. It notices a lost one within a second."""
    import ray
    from ray.cluster_utils import Cluster

    settings = {"USAGE_STATS_ENABLED": "0", "DISABLE_IMPORT_WARNING": "1", "health_check_period_ms": "300"}
    settings |= {"health_check_timeout_ms": "1000", "health_check_failure_threshold": "3", "TMPDIR": "/tmp"}
    # Workers would wait behind everything else that this machine does.
    settings["worker_niceness"] = "0"
    # The memory monitor and the log monitor (below) take time from the tests, which need neither.
    settings["memory_monitor_refresh_ms"] = "0"
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        for name, value in settings.items():
            patch.setenv(f"RAY_{name}", value)
        # Where the actors of Thalweg have their files.
        patch.setenv("TMPDIR", temporary)
        args = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
        cluster = Cluster(initialize_head=True, head_node_args=args)
        session = cluster.head_node.get_session_dir_path()
        for _ in range(MACHINES):
            machine(cluster)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)
        assert [path.name for path in Path(temporary).glob("thalweg-*")] == []


def machine(cluster: Any) -> Any:
    """One more raylet."""
    return cluster.add_node(num_cpus=4, memory=4 << 30, object_store_memory=80 << 20)


def nodes_of(place: Path) -> list[int]:
    """The processes of nodes whose files are below a directory."""
    found = subprocess.run(["pgrep", "-f", "node run --identity"], capture_output=True, text=True).stdout.split()

    def directory(pid: str) -> str:
        try:
            return os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            return ""  # The process has ended since, or is another user's.

    return [int(pid) for pid in found if directory(pid).startswith(str(place))]


def supervisor_of(pid: int) -> int:
    """The process of the supervisor of a node."""
    while b"ray::Supervisor" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def ids(cluster: thalweg.Cluster) -> dict[str, str]:
    """The ids of the nodes that answer, by name: another id is another key."""
    return {host.host: host.status.id for host in cluster.status().hosts if host.status}


def up(cluster: thalweg.Cluster, nodes: int) -> dict[str, str]:
    """The same, when so many answer."""
    eventually(lambda: len(ids(cluster)) == nodes)
    return ids(cluster)
