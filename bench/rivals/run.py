"""Runs one rival once: sorts a file into a file, and prints one line of JSON about it.

    run.py NAME --input FILE --output FILE --format binary|lines --memory BYTES [--threads N]

Each engine gets the file format that suits it best: Parquet without compression, or RowBinary for chdb. That file
is created from the input before anything is timed, and stays next to it for the next run. Caches are dropped before
the sort if this user may do that. The sort runs in a process of its own. Its wall-clock time covers the sort alone: not
the start of the engine, and not the sync of the output, which is `sync_seconds`. CPU time and peak memory include all
processes of the engine. Then the output is compared with the input: the same records, in order.

Invariant: a rival is never charged for our own overhead: starting, converting, checking.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

ENGINES = ["chdb", "polars", "duckdb", "datafusion", "spark", "ray"]
KEY_BYTES = 10
RECORD_BYTES = 100
ROWS_PER_GROUP = 1 << 18
# A smaller input is only a test, so caches are left alone.
TINY_BYTES = 64_000_000
# An engine that may use this many times the input gets no memory limit.
PLENTY = 4


def main():
    args = arguments()
    if args.step == "convert":
        convert(args)
    elif args.step == "sort":
        print(json.dumps(timed_sort(args)))
    elif args.step == "check":
        check(args)
    else:
        print(json.dumps(whole_run(args)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=ENGINES)
    parser.add_argument("--input", required=True, type=os.path.abspath)
    parser.add_argument("--output", required=True, type=os.path.abspath)
    parser.add_argument("--format", required=True, choices=["binary", "lines"])
    parser.add_argument("--memory", required=True, type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--step", choices=["convert", "sort", "check"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.converted = converted_path(args)
    args.scratch = args.output + ".scratch"
    return args


# The whole run, step by step, each in a process of its own.


def whole_run(args):
    run = {
        "name": args.name,
        "ok": False,
        "wall_seconds": 0.0,
        "cpu_seconds": 0.0,
        "peak_rss_bytes": 0,
        "sync_seconds": 0.0,
        "error": "",
    }
    try:
        if not up_to_date(args.converted, args.input):
            step(args, "convert")
        remove(args.output)
        os.makedirs(args.scratch, exist_ok=True)
        cool(args.input)
        run.update(json.loads(step(args, "sort").splitlines()[-1]))
        run["sync_seconds"] = make_durable(args.output)
        step(args, "check")
        run["ok"] = True
    except StepFailed as failure:
        run["error"] = str(failure)
    finally:
        remove(args.scratch)
    return run


class StepFailed(Exception):
    pass


def step(args, name):
    """Runs one step; returns what it printed. Its error is the last line that calls itself one, else the last."""
    done = subprocess.run([sys.executable, *sys.argv, "--step", name], capture_output=True, text=True)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
        said = [line for line in said if "Error" in line or "Exception" in line] or said
        raise StepFailed(f"{name} ended with status {done.returncode}: {said[-1].strip()[:300]}")
    return done.stdout


def up_to_date(path, source):
    return os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(source)


def cool(path):
    if os.path.getsize(path) <= TINY_BYTES:
        return
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as switch:
            switch.write("3")
    except OSError:
        pass  # Whoever compares has said that caches are warm.


def files_of(path):
    """The files of an output, which may be a directory of parts, in order."""
    if not os.path.isdir(path):
        return [path]
    parts = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
    return [os.path.join(path, name) for name in parts]


def make_durable(path):
    start = time.monotonic()
    for name in files_of(path):
        with open(name, "rb") as file:
            os.fsync(file.fileno())
    return time.monotonic() - start


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


# The file that an engine reads.


def converted_path(args):
    if args.name != "chdb":
        return args.input + ".parquet"
    # Records of a fixed length are RowBinary as they are.
    return args.input if args.format == "binary" else args.input + ".rowbinary"


def convert(args):
    partial = args.converted + ".partial"
    if args.name == "chdb":
        lines_to_rowbinary(args.input, partial)
    else:
        to_parquet(args, partial)
    os.rename(partial, args.converted)


def to_parquet(args, path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ["k", "v"] if args.format == "binary" else ["line"]
    schema = pa.schema([pa.field(name, pa.binary(), nullable=False) for name in columns])
    options = {"compression": "NONE", "use_dictionary": False}
    with pq.ParquetWriter(path, schema, **options) as writer:
        if args.format == "binary":
            for records in fixed_records(args.input):
                arrays = [fixed_array(records[:, :KEY_BYTES]), fixed_array(records[:, KEY_BYTES:])]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS_PER_GROUP)
        else:
            for lines in batches_of_lines(args.input):
                table = pa.Table.from_arrays([pa.array(lines, pa.binary())], schema=schema)
                writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def fixed_array(columns):
    """Rows of equal length as an array of binary values."""
    import numpy as np
    import pyarrow as pa

    rows, width = columns.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    data = np.ascontiguousarray(columns)
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def lines_to_rowbinary(source, path):
    with open(path, "wb") as out:
        for lines in batches_of_lines(source):
            out.write(b"".join(length_of(line) + line for line in lines))


def length_of(line):
    """The length as RowBinary writes it: seven bits in each byte, the lowest first."""
    rest, text = len(line), bytearray()
    while rest >= 0x80:
        text.append(rest & 0x7F | 0x80)
        rest >>= 7
    text.append(rest)
    return bytes(text)


def fixed_records(path):
    """The records of a file, some at a time, as rows of bytes."""
    import numpy as np

    with open(path, "rb") as file:
        while piece := file.read(ROWS_PER_GROUP * RECORD_BYTES):
            yield np.frombuffer(piece, np.uint8).reshape(-1, RECORD_BYTES)


def batches_of_lines(path):
    """The lines of a file, some at a time, without their newlines."""
    with open(path, "rb") as file:
        while lines := file.readlines(1 << 24):
            yield [line[:-1] if line.endswith(b"\n") else line for line in lines]


# The sort itself.


def timed_sort(args):
    engines = [chdb, polars, duckdb, datafusion, spark, ray]
    version, sort = next(engine for engine in engines if engine.__name__ == args.name)(args)
    cpu_before = tree()[0]
    start = time.monotonic()
    sort()
    wall_seconds = time.monotonic() - start
    cpu_after, peak_bytes = tree()
    return {
        "name": f"{args.name} {version}",
        "wall_seconds": wall_seconds,
        "cpu_seconds": cpu_after - cpu_before,
        "peak_rss_bytes": peak_bytes,
    }


def tree():
    """CPU seconds so far, and the sum of the peaks of memory, of this process and all below it."""
    parents, ticks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                cells = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # It ended while we looked.
        parents[int(name)] = int(cells[1])
        ticks[int(name)] = sum(map(int, cells[11:15]))
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    cpu = sum(ticks[process] for process in ours if process in ticks) / os.sysconf("SC_CLK_TCK")
    return cpu, sum(map(peak_bytes_of, ours))


def peak_bytes_of(process):
    try:
        with open(f"/proc/{process}/status") as file:
            lines = [line for line in file if line.startswith("VmHWM:")]
    except OSError:
        return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0


def key_of(args):
    return "k" if args.format == "binary" else "line"


def has_plenty(args):
    return args.memory >= PLENTY * os.path.getsize(args.input)


def chdb(args):
    from chdb import session
    import importlib.metadata

    if args.format == "binary":
        columns = f"k FixedString({KEY_BYTES}), v FixedString({RECORD_BYTES - KEY_BYTES})"
    else:
        columns = "line String"
    spill = 0 if has_plenty(args) else args.memory // 2
    settings = (
        f"max_threads = {args.threads}, max_bytes_before_external_sort = {spill}, "
        "max_bytes_ratio_before_external_sort = 0, engine_file_truncate_on_insert = 1"
    )
    query = (
        f"INSERT INTO FUNCTION file('{args.output}', 'RowBinary', '{columns}') "
        f"SELECT * FROM file('{args.converted}', 'RowBinary', '{columns}') ORDER BY {key_of(args)} "
        f"SETTINGS {settings}"
    )
    connection = session.Session(args.scratch)
    return importlib.metadata.version("chdb"), lambda: connection.query(query)


def polars(args):
    # Read when the module is loaded.
    os.environ["POLARS_MAX_THREADS"] = str(args.threads)
    os.environ["POLARS_OOC_SPILL_DIR"] = args.scratch
    if not has_plenty(args):
        os.environ["POLARS_OOC_MEMORY_BUDGET_MB"] = str(args.memory // 1_000_000)
    import polars as pl

    def sort():
        frame = pl.scan_parquet(args.converted).sort(key_of(args))
        frame.sink_parquet(args.output, compression="uncompressed", engine="streaming")

    return pl.__version__, sort


def duckdb(args):
    import duckdb as db

    settings = {
        "threads": args.threads,
        "memory_limit": f"{args.memory}B",
        "temp_directory": args.scratch,
    }
    connection = db.connect(config=settings)
    query = (
        f"COPY (SELECT * FROM read_parquet('{args.converted}') ORDER BY {key_of(args)}) "
        f"TO '{args.output}' (FORMAT parquet, COMPRESSION uncompressed)"
    )
    return db.__version__, lambda: connection.execute(query)


def datafusion(args):
    import datafusion as df

    runtime = df.RuntimeEnvBuilder().with_disk_manager_specified(args.scratch).with_fair_spill_pool(args.memory)
    config = df.SessionConfig().with_target_partitions(args.threads)
    context = df.SessionContext(config, runtime)
    context.register_parquet("records", args.converted)
    query = (
        f"COPY (SELECT * FROM records ORDER BY {key_of(args)}) TO '{args.output}/part-0.parquet' "
        "STORED AS PARQUET OPTIONS ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false')"
    )
    return df.__version__, lambda: context.sql(query).collect()


def spark(args):
    import pyspark
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": f"{args.memory >> 20}m",
        "spark.local.dir": args.scratch,
        "spark.sql.warehouse.dir": args.scratch,
        "spark.sql.parquet.compression.codec": "uncompressed",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master(f"local[{args.threads}]").appName("sort")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")

    def sort():
        session.read.parquet(args.converted).orderBy(key_of(args)).write.mode("overwrite").parquet(args.output)

    return pyspark.__version__, sort


def ray(args):
    import atexit
    import logging
    import tempfile

    import ray as r

    # Its sockets' paths must be short.
    place = tempfile.mkdtemp(prefix="ray-")
    r.init(
        num_cpus=args.threads,
        object_store_memory=args.memory // 2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _temp_dir=place,
    )

    def end():
        r.shutdown()
        shutil.rmtree(place, ignore_errors=True)

    atexit.register(end)
    r.data.DataContext.get_current().enable_progress_bars = False

    def sort():
        r.data.read_parquet(args.converted).sort(key_of(args)).write_parquet(args.output)

    return r.__version__, sort


# What came out, beside what went in.


def check(args):
    """Ends with status 1 and the reason if the output is not the input in order."""
    if args.format == "binary":
        expected = examine_fixed(fixed_records(args.input), ordered=False)
        found = examine_fixed(sorted_fixed(args), ordered=True)
    else:
        expected = examine_lines(batches_of_lines(args.input), ordered=False)
        found = examine_lines(sorted_lines(args), ordered=True)
    if found != expected:
        sys.exit(f"its output has (records, sum) {found}, and the input has {expected}")


def examine_fixed(batches, ordered):
    """How many records, and a sum of their hashes that does not depend on the order."""
    import numpy as np

    count, total, last = 0, 0, None
    for records in batches:
        words = np.zeros((len(records), 104), np.uint8)
        words[:, :RECORD_BYTES] = records
        words = words.view("<u8")
        hashes = np.zeros(len(records), np.uint64)
        for i in range(words.shape[1]):
            hashes = (hashes ^ words[:, i]) * np.uint64(0x9E3779B97F4A7C15)
            hashes ^= hashes >> np.uint64(29)
        count += len(records)
        total = (total + int(hashes.sum(dtype=np.uint64))) % (1 << 64)
        if ordered:
            last = check_keys(np.ascontiguousarray(records[:, :KEY_BYTES]), last)
    return count, total


def check_keys(keys, last):
    """Compares each key with the one before it; returns the last."""
    import numpy as np

    high = np.ascontiguousarray(keys[:, :8]).view(">u8")[:, 0]
    low = np.ascontiguousarray(keys[:, 8:]).view(">u2")[:, 0]
    greater = (high[:-1] > high[1:]) | ((high[:-1] == high[1:]) & (low[:-1] > low[1:]))
    first = (int(high[0]), int(low[0]))
    if greater.any() or (last is not None and last > first):
        sys.exit("its output is not in order")
    return int(high[-1]), int(low[-1])


def sorted_fixed(args):
    import numpy as np

    if args.name == "chdb":
        yield from fixed_records(args.output)
        return
    for batch in parquet_batches(args.output):
        columns = [fixed_rows(batch.column(name), width) for name, width in (("k", 10), ("v", 90))]
        yield np.concatenate(columns, axis=1)


def fixed_rows(column, width):
    """Binary values of equal length as rows of bytes."""
    import numpy as np
    import pyarrow as pa

    column = column.cast(pa.large_binary())
    start = np.frombuffer(column.buffers()[1], np.int64)[column.offset]
    data = np.frombuffer(column.buffers()[2], np.uint8)[start : start + len(column) * width]
    return data.reshape(-1, width)


def parquet_batches(path):
    import pyarrow.parquet as pq

    for name in files_of(path):
        yield from (batch for batch in pq.ParquetFile(name).iter_batches(ROWS_PER_GROUP) if len(batch))


def examine_lines(batches, ordered):
    count, total, last = 0, 0, b""
    for lines in batches:
        for line in lines:
            if ordered:
                if line < last:
                    sys.exit("its output is not in order")
                last = line
            count += 1
            total += hash(line)
    return count, total % (1 << 64)


def sorted_lines(args):
    if args.name != "chdb":
        for batch in parquet_batches(args.output):
            yield batch.column("line").to_pylist()
        return
    with open(args.output, "rb") as file:
        while (line := read_rowbinary(file)) is not None:
            yield [line]


def read_rowbinary(file):
    length, shift = 0, 0
    while byte := file.read(1):
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return file.read(length)
    return None


if __name__ == "__main__":
    main()
