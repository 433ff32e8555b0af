"""What a command did on the hosts of a cluster, and what it wrote there."""

from __future__ import annotations

from dataclasses import dataclass, field

from thalweg.reports import ExecReport


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
