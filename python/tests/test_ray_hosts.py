"""Clusters that Ray hosts where a test needs a Ray cluster of its own: one that asks for a token, and one of hosts that
share neither addresses nor files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from hosting import eventually

pytest.importorskip("ray", reason="there is no Ray")

TOKEN = """
import os, subprocess, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "memory": 1 << 30, "include_dashboard": False})
os.environ["RAY_ADDRESS"] = cluster.address
import ray, thalweg.ray
with thalweg.ray.cluster(1, memory="256MiB", data=os.getcwd(), timeout=60) as river:
    assert river.exec(["true"]).ok
    # What the first look-up has stored is enough for those who have it, and only for them.
    words = ["thalweg", "exec", "--cluster", "ray:river", "--", "true"]
    subprocess.run(words, check=True)
    stranger = {**os.environ, "XDG_CONFIG_HOME": "elsewhere"}
    del stranger["RAY_AUTH_TOKEN"]
    refused = subprocess.run(words, env=stranger, capture_output=True, text=True)
    print(refused.returncode, refused.stderr)
ray.shutdown()
cluster.shutdown()
"""


def test_a_ray_cluster_with_tokens_hosts_for_those_who_have_one(place: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    env = {**os.environ, **token}
    done = subprocess.run([sys.executable, "-c", TOKEN], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    status, refused = done.stdout.strip().split(" ", 1)
    assert status == "2" and len(refused.splitlines()) == 1, refused
    assert refused.startswith("thalweg: Ray cannot be used: Token authentication is enabled but no"), refused


def test_the_benchmark_runs_at_a_tiny_size(place: Path) -> None:
    words = "--rows skewed,launch --size 2000000 --nodes 1 --launches 3".split()
    words = [sys.executable, ROOT / "bench/on_ray.py", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["name"] for row in rows] == ["skewed", "launch"]
    assert all(other["right"] for row in rows for other in row["others"]) and not any(row["failed"] for row in rows)


HOSTS = 3

DRIVER = """
import os, sys, time
import ray, thalweg
head, private, hosts = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = {"runtime_env": {"py_modules": [thalweg]}, "log_to_driver": False, "logging_level": "error"}
ray.init(address=head, **options)
import thalweg.ray
with thalweg.ray.cluster(hosts - 1, memory="256MiB", data=private + "/data", timeout=60) as river:
    thalweg.gen("40k", private + "/records")
    word = {"datamation": True, "memory": "64MiB", "cluster": river}
    # No host has what another has, so the records come over the links.
    thalweg.partition(f"client:{private}/records", "nodes:part-{}", parts=2, **word)
    receipt = thalweg.sort("nodes:part-*", "nodes:sorted-{}", **word)
    for host, output in river.exec(["ls"]).outputs.items():
        print(host, *output.out.decode().split())
    print(receipt.output.records, len({host.address.rpartition(":")[0] for host in river.status().hosts}))
"""


@pytest.fixture
def lab(place: Path) -> Iterator[str]:
    """The id of a lab of :data:`HOSTS` hosts, each with an address of its own."""
    env = {**os.environ, "THALWEG": str(shutil.which("thalweg")), "THALWEG_LABS": str(place / "labs")}
    up = subprocess.run([ROOT / "lab/up", str(HOSTS)], env=env, capture_output=True, text=True)
    if any(why in up.stderr for why in ("need root", "is missing", "not permitted")):
        pytest.skip(up.stderr.strip())
    assert up.returncode == 0, up.stderr
    id = up.stdout.split("export LAB=")[1].split()[0]
    yield id
    subprocess.run([ROOT / "lab/down"], env={**env, "LAB": id}, check=True)


def test_hosts_that_share_nothing_get_the_package_from_the_job(lab: str, place: Path) -> None:
    import ray

    private = place / "private"
    private.mkdir()
    Path("/tmp/ray").mkdir(exist_ok=True)
    # The interpreter that has Ray and not this package.
    python = Path(str(ray.__file__)).parents[4] / "bin/python"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp", "TMPDIR": str(private), "HOME": str(private)}
    mount = 'mount -t tmpfs private "$1" && mkdir "$1/data" && mount -t tmpfs ray /tmp/ray && shift && exec "$@"'

    def host(number: int, *words: str) -> subprocess.Popen[bytes]:
        net = f"10.{64 + (int(lab, 16) >> 8) % 64}.{int(lab, 16) & 255}"
        ray = [str(python), "-m", "ray.scripts.scripts", "start", f"--node-ip-address={net}.{number}", "--block"]
        size = ["--memory", str(1 << 30), "--object-store-memory", str(80 << 20)]
        command = ["unshare", "-m", "sh", "-c", mount, "sh", str(private), *ray, *size]
        words = tuple(word.replace("NET", net) for word in words)
        space = ["ip", "netns", "exec", f"th{lab}-n{number}"]
        with open(place / f"log{number}", "wb") as log:
            return subprocess.Popen([*space, *command, *words], env=env, stdout=log, stderr=log)

    def started(number: int) -> bool:
        return "Ray runtime started" in (place / f"log{number}").read_text()

    head = host(1, "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
    eventually(lambda: started(1))
    others = [host(number, "--address=NET.1:6379", "--num-cpus=1") for number in range(2, HOSTS + 1)]
    eventually(lambda: all(started(number) for number in range(2, HOSTS + 1)))
    address = f"10.{64 + (int(lab, 16) >> 8) % 64}.{int(lab, 16) & 255}.1:6379"
    words = ["nsenter", "--mount", "--net", "-t", str(head.pid), sys.executable, "-c", DRIVER]
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    given = [*words, address, str(private), str(HOSTS)]
    done = subprocess.run(given, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # The hosts are in the order in which they have ended.
    *parts, last = done.stdout.splitlines()
    assert (sorted(parts), last) == (["n1 part-0 sorted-0", "n2 part-1 sorted-1"], f"40000 {HOSTS - 1}")
    assert list(private.iterdir()) == []
    for process in (*others, head):
        process.kill()
        process.wait()
