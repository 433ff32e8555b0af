"""A cluster of nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, cast

from thalweg import _native
from thalweg._hosted import PREFIX, identity, settings
from thalweg._names import Name, names, path, seconds, text
from thalweg._objects import made
from thalweg._progress import Cancel, call
from thalweg.errors import ClusterError, CommandFailed, UsageError
from thalweg.executed import Executed, HostOutput
from thalweg.reports import ClusterReport, ExecReport, HostEnd, JobList

TIMEOUT_SECONDS_MAX = 10**9
"""The longest timeout of a command: 30 years."""


class Cluster:
    """A cluster, by its name or by the directory of the identity with which it is asked; ``ray:NAME`` is one that
    :mod:`thalweg.ray` hosts.

    Without ``identity`` that directory is ``THALWEG_IDENTITY`` or ``~/.config/thalweg``, as for the command. ``on``
    names the hosts that are to do the work; all of them if it is empty. Making one asks nobody.

    >>> from thalweg import Cluster
    >>> Cluster("river", on=["n1", "n2"])
    Cluster('river', on=('n1', 'n2'))
    """

    def __init__(
        self,
        name: str | os.PathLike[str] | None = None,
        *,
        identity: str | os.PathLike[str] | None = None,
        on: Iterable[str] = (),
    ) -> None:
        self.name = None if name is None else path("name", name)
        self.identity = None if identity is None else path("identity", identity)
        self.on = tuple(names(on, "on"))

    def __repr__(self) -> str:
        given = [] if self.name is None else [repr(self.name)]
        given += [] if self.identity is None else [f"identity={self.identity!r}"]
        given += [f"on={self.on!r}"] if self.on else []
        return f"Cluster({', '.join(given)})"

    def options(self) -> dict[str, Any]:
        """The keywords of a verb that runs on it."""
        where, identity = self.where()
        # The name of a cluster that the identity has anyway is enough to run there.
        where = where or identity or _default_identity()
        return {"cluster": where, "identity": identity, "on": self.on}

    def where(self) -> tuple[str | None, str | None]:
        """The cluster and the identity as the command takes them."""
        if self.name is not None and self.name.startswith(PREFIX):
            return identity(self.name.removeprefix(PREFIX)), None
        if self.name is not None and not os.path.exists(self.name):
            _check_name(self.name, self.identity or _default_identity())
        return self.name, self.identity

    def exec(
        self,
        command: Iterable[Name],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        detach: bool = False,
        check: bool = False,
        cancel: Cancel | None = None,
    ) -> Executed:
        """Runs a command on the hosts, and returns when it has ended on all of them.

        ``timeout`` is in seconds; the command is ended after that. With ``detach`` it goes on without this program.
        ``cancel`` ends it from another thread.

        Raises :class:`thalweg.ClusterError` if the cluster cannot be used. A host that cannot be reached is in the
        report, and so is a status other than 0; with ``check`` either raises :class:`thalweg.CommandFailed`, as
        ``subprocess.run`` does.
        """
        if isinstance(command, (str, bytes)):
            raise TypeError(f"command={command!r}: give a list of words, as in ['sh', '-c', {command!r}]")
        typed = names(command, "command")
        if not typed:
            raise UsageError(f"command={command!r}: give a program and its arguments")
        if not isinstance(cast(object, env), (Mapping, NoneType)):
            raise TypeError(f"env={env!r}: give a mapping of names to values")
        if timeout is not None:
            seconds("timeout", timeout, TIMEOUT_SECONDS_MAX)
        where, identity = self.where()
        pairs = list((env or {}).items())
        look = None if cancel is None else cancel.check
        report, outputs = _native.exec(where, identity, self.on, typed, pairs, timeout, detach, look)
        ends = made(ExecReport, report)
        said = {host: HostOutput(out, err) for host, out, err in outputs}
        executed = Executed(ends, {end.host: said.get(end.host, HostOutput()) for end in ends.hosts})
        fine = ("done", "running") if detach else ("done",)
        failed = [end for end in ends.hosts if end.end is None or end.end.state not in fine]
        if check and failed:
            why = CommandFailed("; ".join(f"{end.host}: {_ended(end)}" for end in failed))
            why.executed = executed
            raise why
        return executed

    def status(self) -> ClusterReport:
        """Asks each host how it is."""
        return made(ClusterReport, call("cluster", ["status"], self.identity_options()))

    def jobs(self) -> JobList:
        """The jobs on the hosts, those that have ended lately included."""
        return made(JobList, call("job", ["list"], {**self.identity_options(), "on": self.on}))

    def cancel(self, job: str) -> JobList:
        """Ends a job on every host. ``job`` is the beginning of its id."""
        return made(JobList, call("job", ["cancel", text("job", job)], self.identity_options()))

    def identity_options(self) -> dict[str, Any]:
        """The keywords of a command that takes an identity alone."""
        where, identity = self.where()
        is_path = where is not None and os.path.exists(where)
        return {"identity": where if is_path else identity}


def _check_name(name: str, place: str) -> None:
    """Refuses an identity of another cluster than the one that was named."""
    try:
        with open(os.path.join(place, "cluster.json"), "rb") as file:
            has = json.load(file)["name"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # What is wrong there is said by whatever uses it.
    if has != name:
        raise ClusterError(f"the identity in {place} is of cluster {has}, not of {name}")


def _ended(host: HostEnd) -> str:
    """How a command ended on a host, in words."""
    end = host.end
    if end is None:
        return host.error or "it did not report the end"
    if end.why:
        return end.why
    return f"signal {end.signal}" if end.signal is not None else f"status {end.status}"


def _default_identity() -> str:
    """The directory of the identity that is used if none is given."""
    return os.environ.get("THALWEG_IDENTITY") or os.path.join(settings(), "thalweg")
