"""What clusters report: their hosts, the commands that these run, and their jobs.

As in :mod:`thalweg.results`, ``str()`` of a report is what the command prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thalweg._objects import Object, counted


@dataclass(frozen=True, kw_only=True)
class ExecEnd(Object):
    """How a command ended on one node."""

    state: str
    """The job's state now."""
    status: int | None
    """Its exit status, if it exited."""
    signal: int | None
    """The signal that ended it, if one did."""
    why: str | None
    """Why it was not started, or was ended."""


@dataclass(frozen=True, kw_only=True)
class HostEnd(Object):
    """How a command ended on a host."""

    host: str
    """The host."""
    end: ExecEnd | None
    """How it ended there, if the node reported that."""
    error: str | None
    """Why it did not, otherwise."""
    seconds: float
    """Wall-clock seconds."""
    out: str | None = None
    """The standard output of its command, if it was gathered."""
    err: str | None = None
    """The standard error of its command, if it was gathered."""


@dataclass(frozen=True, kw_only=True)
class ExecReport(Object):
    """What ``exec`` did on each host."""

    job: str
    """The job's id."""
    hosts: tuple[HostEnd, ...]
    """One for each host, in the order of the cluster file."""
    seconds: float
    """Wall-clock seconds."""


@dataclass(frozen=True, kw_only=True)
class JobReport(Object):
    """A job on one node."""

    id: str
    """32 hexadecimal digits."""
    host: str
    """The host."""
    by: str
    """Who asked for it: a client or a node, by the name in its certificate."""
    command: tuple[str, ...]
    """The program and its arguments, or the verb and its arguments."""
    state: str
    """Its state."""
    status: int | None
    """Its exit status, if it exited."""
    signal: int | None
    """The signal that ended it, if one did."""
    why: str | None
    """Why it was not started, or was ended."""
    detached: bool
    """Whether it continues without its client."""
    pid: int | None
    """The process, which leads its own group."""
    began_seconds: int
    """When it began, in seconds since 1970."""
    seconds: float
    """How long it ran, or has been running."""
    output_bytes: int
    """Bytes of output so far."""
    tail: str
    """The end of the output, as text, of a job that continues without its client."""
    share: dict[str, Any] | None
    """This node's part in a job on several nodes."""


@dataclass(frozen=True, kw_only=True)
class JobList(Object):
    """The jobs of one node, or of all nodes."""

    jobs: tuple[JobReport, ...]
    """One for each job and host."""
    errors: tuple[str, ...]
    """A line for each host that could not be asked."""

    def _title(self) -> str:
        asked = f", {counted(len(self.errors), 'host')} not asked" if self.errors else ""
        return counted(len({job.id for job in self.jobs}), "job") + asked


@dataclass(frozen=True, kw_only=True)
class NodeStatus(Object):
    """The status of a node."""

    name: str
    """The host's name."""
    id: str
    """The node's id."""
    cluster: str
    """The cluster's id."""
    epoch: int
    """The epoch of its cluster file."""
    version: str
    """The version of its program."""
    build: str
    """The build of its program: 16 hexadecimal digits, which differ if the sources do."""
    protocols: tuple[int, ...]
    """The first and the last version of the protocol between nodes that it speaks."""
    pid: int
    """The process."""
    seconds: float
    """How long it has been running."""
    links: int
    """Open links."""
    jobs_running: int
    """Running jobs."""
    jobs_ended: int
    """Jobs that have ended since it began."""
    refused: int
    """Connections that were refused since it began."""
    resident_bytes: int
    """Resident memory, in bytes."""
    certificate_ends: int
    """When its certificate expires, in seconds since 1970; 0 without an identity."""
    twice: tuple[str, ...]
    """Hosts whose certificate two processes used with it in the last minute."""


@dataclass(frozen=True, kw_only=True)
class HostReport(Object):
    """The answer of a host."""

    host: str
    """Its name."""
    address: str
    """The address of its node."""
    status: NodeStatus | None
    """Its status, if it answered."""
    error: str | None
    """Why it did not, otherwise."""
    seconds: float
    """How long the answer took."""


@dataclass(frozen=True, kw_only=True)
class ClusterReport(Object):
    """A cluster, as its nodes see it."""

    name: str
    """Its name."""
    cluster: str
    """Its id."""
    epoch: int
    """The epoch of the cluster file here."""
    warnings: tuple[str, ...]
    """A line with the remedy for each certificate that expires soon and each host that runs twice."""
    hosts: tuple[HostReport, ...]
    """One for each host."""

    def _title(self) -> str:
        up = sum(host.status is not None for host in self.hosts)
        return f"cluster {self.name}: {up} of {counted(len(self.hosts), 'node')} up"


@dataclass(frozen=True)
class HostOutput:
    """What a command wrote on one host, at most 16 MiB of each."""

    out: bytes = b""
    """Standard output."""
    err: bytes = b""
    """Standard error."""


@dataclass(frozen=True)
class Executed:
    """What a command did on each host."""

    report: ExecReport
    """How it ended on each host."""
    outputs: dict[str, HostOutput] = field(default_factory=dict[str, HostOutput])
    """What it wrote, by the names of hosts: nothing on one that could not be reached."""

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0 on every host."""
        return all(host.end is not None and host.end.state == "done" for host in self.report.hosts)
