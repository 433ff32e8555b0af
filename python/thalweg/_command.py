"""The ``thalweg`` command of the package: the same program as the one that cargo builds, in this process."""

from __future__ import annotations

import os
import signal
import sys

from thalweg import _native


def main() -> None:
    """Ends the process with the command's exit status."""
    # The command has handlers of its own; Python's would wait for an interpreter that does not run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    script = os.path.abspath(sys.argv[0])
    # Nothing of Python's has to be cleaned up, and what the command printed is flushed.
    os._exit(_native.command(script, sys.argv[1:]))
