"""The ``thalweg`` command of the package: the same program as the one that cargo builds, in this process."""

from __future__ import annotations

import os
import signal
import sys

from thalweg import _native
from thalweg._hosted import PREFIX, identity
from thalweg.errors import Error, UsageError

_WITH_IDENTITY = ("exec", "job", "node", "cluster", "pump")
"""Commands that take the directory of an identity, and no cluster."""
_WHERE = ("--cluster", "--identity")
"""Flags that name a cluster or a directory."""


def _hosted(words: list[str]) -> list[str]:
    """The words with an identity in the place of ``--cluster ray:NAME`` or ``--identity ray:NAME``."""
    given: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*given, word, *rest]
        flag, assigned, name = word.partition("=")
        if flag not in _WHERE:
            given.append(word)
            continue
        if not assigned:
            name = next(rest, "")
        if not name.startswith(PREFIX):
            given += [word] if assigned or not name else [word, name]
            continue
        name = name.removeprefix(PREFIX)
        if words[0] == "cluster" and "status" not in words[1:2]:
            raise UsageError(f"Ray hosts the cluster '{name}': thalweg.ray.cluster makes it, thalweg.ray.down ends it")
        given += ["--identity" if words[0] in _WITH_IDENTITY else "--cluster", identity(name)]
    return given


def _script() -> str:
    """The file that starts this command, which starts itself again for a node. ``python -m thalweg`` is no file."""
    script = os.path.abspath(sys.argv[0])
    beside = os.path.join(os.path.dirname(sys.executable), "thalweg")
    return beside if os.path.basename(script) == "__main__.py" and os.access(beside, os.X_OK) else script


def main() -> None:
    """Ends the process with the command's exit status."""
    # The command has handlers of its own; Python's would wait for an interpreter that does not run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    script = _script()
    # Nothing of Python's has to be cleaned up, and what the command printed is flushed.
    try:
        words = _hosted(sys.argv[1:])
    except (Error, ImportError) as why:
        print(f"thalweg: {why}", file=sys.stderr)
        sys.exit(2)
    os._exit(_native.command(script, words))
