"""What some results do besides holding fields: their text, their truth, and the line that sums them up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from thalweg._objects import Object, counted

if TYPE_CHECKING:
    from thalweg.reports import HostReport, JobReport
    from thalweg.results import MemoryReceipt, Proof


class ReceiptShown(Object):
    """A receipt, whose peak is that of the program."""

    if TYPE_CHECKING:
        memory: MemoryReceipt

    def __str__(self) -> str:
        # The command promises a peak, for it is all that its process does. That of a program holds what it will.
        own: Any = self
        limitless = dataclasses.replace(own, memory=dataclasses.replace(self.memory, limit_bytes=0))
        text = Object.__str__(limitless if self.memory.limit_bytes else self)
        return text.replace("\nmemory    peak ", "\nmemory    peak of the process ", 1)


class CheckShown(Object):
    """A check, which is true if the records are in order."""

    if TYPE_CHECKING:
        proof: Proof
        ordered: bool

    def __bool__(self) -> bool:
        return self.ordered

    def _title(self) -> str:
        return f"{counted(self.proof.records, 'record')}, {'in order' if self.ordered else 'not in order'}"


class DoctorReportShown(Object):
    """What a doctor found."""

    def _title(self) -> str:
        return str(self).rpartition("\n")[2]


class JobListShown(Object):
    """Jobs."""

    if TYPE_CHECKING:
        jobs: tuple[JobReport, ...]
        errors: tuple[str, ...]

    def _title(self) -> str:
        asked = f", {counted(len(self.errors), 'host')} not asked" if self.errors else ""
        return counted(len({job.id for job in self.jobs}), "job") + asked


class ClusterReportShown(Object):
    """A cluster."""

    if TYPE_CHECKING:
        name: str
        hosts: tuple[HostReport, ...]

    def _title(self) -> str:
        up = sum(host.status is not None for host in self.hosts)
        return f"cluster {self.name}: {up} of {counted(len(self.hosts), 'node')} up"
