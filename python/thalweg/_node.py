"""A node that ends when whoever started it does: ``python -m thalweg._node SCRIPT IDENTITY CORES``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading

from thalweg import _native


_LOOK_SECONDS = 0.1
"""How long a node that has ended looks whether its supervisor has."""


def _end_with_stdin() -> None:
    # Nothing is ever written; the end of the pipe is the end of the supervisor.
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Runs the node of an identity on some cores, and ends with its status. A node without a supervisor removes its
    files."""
    script, identity, cores = sys.argv[1:]
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    left = threading.Thread(target=_end_with_stdin, daemon=True)
    left.start()
    status = _native.command(script, ["node", "run", "--identity", identity])
    left.join(_LOOK_SECONDS)
    if not left.is_alive():
        # The supervisor may have been killed, and be restarted on another machine.
        shutil.rmtree(identity, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(identity))
    os._exit(status)


if __name__ == "__main__":
    main()
