"""A node that ends when whoever started it does: ``python -m thalweg._node SCRIPT IDENTITY CORES``."""

from __future__ import annotations

import os
import signal
import sys
import threading

from thalweg import _native


def _end_with_stdin() -> None:
    # Nothing is ever written; the end of the pipe is the end of the supervisor.
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Runs the node of an identity on some cores, and ends with its status."""
    script, identity, cores = sys.argv[1:]
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    os._exit(_native.command(script, ["node", "run", "--identity", identity]))


if __name__ == "__main__":
    main()
