"""Sorts the same records with thalweg.sort and with ray.data.sort, on the same Ray cluster, and prints one object of JSON.

    on_ray.py [--rows even,skewed,launch] [--size BYTES] [--nodes N] [--memory BYTES] [--dir DIR] [--launches N]

Each row has a Ray cluster of its own, so that nothing of another row is left. Each of its nodes has two CPUs and an object store of `--memory`, which is also the memory of a node of
Thalweg. Thalweg sorts a file of records that all nodes see into a file; Ray Data sorts Parquet files without compression,
which suit it best, into such files. Both runs are timed from the call to the end, without the start of the clusters.
The placement group of Thalweg is gone before Ray Data begins.

Memory is the highest sum of the proportional set sizes (PSS) of all processes of Ray and Thalweg and of the program that
calls them, less that sum before: of the idle Ray cluster, in which no actor or worker runs yet. CPU time is that of the same processes. The output of each has
to hold the same records as the input, in order.

The row `launch` is `true` on all nodes, from the call to its end, with the addresses looked up before.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet

import thalweg

KEY_BYTES = 10
RECORD_BYTES = 100
FILES_PER_NODE = 4
CPUS = 2
# Ray Data sorts partitions of about this size.
PARTITION_BYTES = 16 << 20
LOOK_SECONDS = 0.5
# What the issue asks of the rows.
TIMES_FASTER = 10
SHARE_OF_MEMORY = 0.1
LAUNCH_MS = 150


def main():
    args = arguments()
    began = datetime.datetime.now(datetime.timezone.utc)
    # Ray writes some warnings of its processes to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        rows = [on_a_ray_cluster(args, ROWS[name]) for name in args.rows.split(",")]
    print(json.dumps(report(args, began, rows)))
    sys.exit(any(row["failed"] for row in rows))


def on_a_ray_cluster(args, work):
    """The row that some work on a new Ray cluster makes."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(args.nodes):
        # Ray asks for an object store of at least 75 MiB.
        cluster.add_node(num_cpus=CPUS, memory=8 << 30, object_store_memory=max(args.memory, 80 << 20))
    os.environ["RAY_ADDRESS"] = cluster.address
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    place = Path(tempfile.mkdtemp(prefix="ray-bench-", dir=os.path.abspath(args.dir)))
    os.environ["XDG_CONFIG_HOME"] = str(place / "settings")
    try:
        return work(args, place)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(place)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--size", type=int, default=2_000_000_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--memory", type=int, default=128 << 20)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--launches", type=int, default=50)
    args = parser.parse_args()
    if unknown := set(args.rows.split(",")) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return args


def hosted(args, place):
    """A cluster of Thalweg on the Ray cluster."""
    import thalweg.ray

    return thalweg.ray.cluster(args.nodes, cpus=1, memory=args.memory, data=place, timeout=60, name="bench")


def sorts(args, place, skewed):
    """The row of one kind of records."""
    records = args.size // RECORD_BYTES
    source, sorted_ = place / "records", place / "sorted"
    thalweg.gen(records, source, skewed=skewed)
    parquet, parts = place / "parquet", place / "parts"
    convert(source, parquet, args.nodes * FILES_PER_NODE)
    idle = sample(processes())
    with hosted(args, place) as cluster:
        ours = measured(idle, lambda: thalweg.sort(
            source, sorted_, datamation=True, memory=args.memory, cluster=cluster))  # fmt: skip
    checked = thalweg.check(sorted_, datamation=True)
    right = checked.ordered and checked.proof.records == records
    theirs = measured(idle, lambda: sorted_by_ray(parquet, parts, max(args.size // PARTITION_BYTES, args.nodes)))
    other = {"name": "ray.data.sort", "measure": theirs, "right": compared(parts, sorted_), "note": ""}
    for made in (source, sorted_):
        made.unlink()
    for made in (parquet, parts):
        shutil.rmtree(made)
    faster = theirs["seconds"] / ours["seconds"]
    share = ours["peak_bytes"] / max(theirs["peak_bytes"], 1)
    return row(
        "skewed" if skewed else "even",
        f"{args.size / 1e9:.2f} GB{' of skewed keys' if skewed else ''} on {args.nodes} nodes",
        args,
        ours,
        others=[other],
        targets=[
            target(f"{TIMES_FASTER} x faster", f"{faster:.1f} x", faster >= TIMES_FASTER),
            target(f"memory <= {SHARE_OF_MEMORY} x", f"{share:.3f} x", share <= SHARE_OF_MEMORY),
        ],
        failed="" if right else "the output of thalweg.sort is not the sorted input",
    )


def convert(source, place, files):
    """The records as columns, in so many Parquet files."""
    place.mkdir()
    records = numpy.memmap(source, dtype="u1", mode="r").reshape(-1, RECORD_BYTES)
    for index, part in enumerate(numpy.array_split(records, files)):
        columns = {"key": part[:, :KEY_BYTES], "value": part[:, KEY_BYTES:]}
        arrays = {name: fixed(column) for name, column in columns.items()}
        pyarrow.parquet.write_table(pyarrow.table(arrays), place / f"{index:03}.parquet", compression="none")


def fixed(column):
    """Values of equal length as an array of binary values."""
    rows, width = column.shape
    offsets = pyarrow.py_buffer(numpy.arange(rows + 1, dtype="i4") * width)
    data = pyarrow.py_buffer(numpy.ascontiguousarray(column))
    return pyarrow.BinaryArray.from_buffers(pyarrow.binary(), rows, [None, offsets, data])


def sorted_by_ray(source, place, partitions):
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # 200 by default, which takes minutes for small inputs.
    context.default_hash_shuffle_parallelism = partitions
    ray.data.read_parquet(str(source)).sort("key").write_parquet(str(place))


def compared(parts, sorted_):
    """Whether Ray's files hold the keys of the sorted file. Values of equal keys may be in another order."""
    keys = numpy.memmap(sorted_, dtype="u1", mode="r").reshape(-1, RECORD_BYTES)[:, :KEY_BYTES]
    tables = [pyarrow.parquet.read_table(path, columns=["key"]) for path in parts.iterdir()]
    # The names of Ray's files do not say their order.
    tables = sorted((table["key"].combine_chunks() for table in tables if len(table)), key=lambda key: key[0].as_py())
    at = 0
    for table in tables:
        buffer = numpy.frombuffer(table.buffers()[2], dtype="u1")[: len(table) * KEY_BYTES]
        if not (buffer.reshape(-1, KEY_BYTES) == keys[at : at + len(table)]).all():
            return False
        at += len(table)
    return at == len(keys)


def launches(args, place):
    """The row of a command on all nodes, by a call and by the package's command."""
    command = ["thalweg", "exec", "--cluster", "ray:bench", "--", "true"]
    with hosted(args, place) as cluster:
        cluster.exec(["true"])
        idle = sample(processes())
        called = repeated(args.launches, idle, lambda: cluster.exec(["true"]))
        typed = repeated(args.launches, idle, lambda: subprocess.run(command, check=True))
    targets = []
    for name, measure in (("call", called), ("command", typed)):
        ms = measure["seconds"] * 1000
        targets.append(target(f"{name} <= {LAUNCH_MS} ms", f"{ms:.1f} ms", ms <= LAUNCH_MS))
    other = {"name": "the command", "measure": typed, "right": True, "note": "with the start of Python"}
    work = f"true on {args.nodes} nodes, addresses known"
    return row("launch", work, args, called, others=[other], targets=targets, bytes=0)


def repeated(times, idle, work):
    """The median of so many calls."""
    all_seconds = []
    measure = measured(idle, lambda: all_seconds.extend(timed(work) for _ in range(times)))
    cpu = measure["cpu_seconds"] / times
    return measure | {"seconds": statistics.median(all_seconds), "cpu_seconds": cpu, "all_seconds": all_seconds}


def timed(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


# The processes of Ray and Thalweg, and what they use.


def processes():
    """This process and all that Ray has started for it, directly or not."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        parents[int(path.parent.name)] = int(fields[1])
    own = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in own} - own
        if not more:
            return own
        own |= more


def sample(pids):
    """The sum of their proportional set sizes, in bytes, and the CPU seconds of each."""
    ticks = os.sysconf("SC_CLK_TCK")
    pss, cpu = 0, {}
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pss += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
        # Of those that have ended, their parents have the times.
        cpu[pid] = sum(int(field) for field in fields[11:15]) / ticks
    return pss, cpu


def measured(idle, work):
    """What a call takes, beside the idle cluster."""
    peak, (_, before), ended = 0, sample(processes()), threading.Event()

    def watch():
        nonlocal peak
        while not ended.wait(LOOK_SECONDS):
            peak = max(peak, sample(processes())[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = timed(work)
    peak = max(peak, sample(processes())[0])
    ended.set()
    watcher.join()
    after = sample(processes())[1]
    cpu = sum(used - before.get(pid, 0) for pid, used in after.items())
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": max(peak - idle[0], 0), "all_seconds": [seconds]}


# The object that `cargo xtask docs` reads.


def target(text, measured, met):
    return {"target": text, "measured": measured, "met": bool(met)}


def row(name, work, args, ours, *, others=(), targets=(), failed="", bytes=None):
    return {
        "name": name,
        "work": work,
        "bytes": args.size if bytes is None else bytes,
        "memory_bytes": args.memory,
        "ours": ours,
        "floor": None,
        "others": list(others),
        "targets": list(targets),
        "digest": "",
        "failed": failed,
        "notes": [],
    }


def report(args, began, rows):
    import ray

    memory = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    machine = {
        "host": platform.node(),
        "kernel": platform.release(),
        "cpu": next((line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")), "").strip(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "disk": "",
    }
    return {
        "bench": "ray",
        "date": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": thalweg.__version__,
        "machine": machine,
        "size_bytes": args.size,
        "seed": 0,
        "runs": 1,
        "cache": "warm",
        "rows": rows,
        "rates": [],
        "notes": [f"Ray {ray.__version__}, {CPUS} CPUs and an object store of {args.memory >> 20} MiB on each node"],
    }


ROWS = {
    "even": lambda args, place: sorts(args, place, skewed=False),
    "skewed": lambda args, place: sorts(args, place, skewed=True),
    "launch": launches,
}

if __name__ == "__main__":
    main()
