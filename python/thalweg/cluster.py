"""A cluster of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from thalweg import _native
from thalweg._objects import made
from thalweg._progress import call
from thalweg._words import Option, words
from thalweg.results import ClusterReport, ExecReport, Executed, HostOutput, JobList

HOSTED = "ray:"
"""What the name of a cluster begins with that Ray hosts."""


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
        self.name = None if name is None else os.fspath(name)
        self.identity = None if identity is None else os.fspath(identity)
        self.on = tuple(on)

    def __repr__(self) -> str:
        given = [] if self.name is None else [repr(self.name)]
        given += [] if self.identity is None else [f"identity={self.identity!r}"]
        given += [f"on={self.on!r}"] if self.on else []
        return f"Cluster({', '.join(given)})"

    def flags(self) -> dict[str, Option]:
        """The keywords of a verb that runs on it."""
        where, identity = self.where()
        # The name of a cluster that the identity has anyway is enough to run there.
        return {"cluster": where or identity, "identity": identity, "on": ",".join(self.on) or None}

    def where(self) -> tuple[str | None, str | None]:
        """The cluster and the identity as the command takes them."""
        if self.name is not None and self.name.startswith(HOSTED):
            from thalweg.ray import identity

            return identity(self.name.removeprefix(HOSTED)), None
        return self.name, self.identity

    def exec(
        self,
        command: Iterable[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        detach: bool = False,
    ) -> Executed:
        """Runs a command on the hosts, and returns when it has ended on all of them.

        ``timeout`` is in seconds; the command is ended after that. With ``detach`` it goes on without this program.

        Raises :class:`thalweg.ClusterError` if the cluster cannot be used. A host that cannot be reached is in the
        report, and so is a status other than 0.
        """
        where, identity = self.where()
        pairs = list((env or {}).items())
        report, outputs = _native.exec(where, identity, self.on, list(command), pairs, timeout, detach)
        said = {host: HostOutput(out, err) for host, out, err in outputs}
        return Executed(made(ExecReport, report), said)

    def status(self) -> ClusterReport:
        """Asks each host how it is."""
        return made(ClusterReport, call(words("cluster status", (), self._identity())))

    def jobs(self) -> JobList:
        """The jobs on the hosts, those that have ended lately included."""
        options = {**self._identity(), "on": ",".join(self.on) or None}
        return made(JobList, call(words("job list", (), options)))

    def cancel(self, job: str) -> JobList:
        """Ends a job on every host. ``job`` is the beginning of its id."""
        return made(JobList, call(words("job cancel", (job,), self._identity())))

    def _identity(self) -> dict[str, Option]:
        where, identity = self.where()
        is_path = where is not None and os.path.exists(where)
        return {"identity": where if is_path else identity}
