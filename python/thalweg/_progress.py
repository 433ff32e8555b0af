"""Progress of a call, shown by tqdm or given to a function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from thalweg import _native

Look: TypeAlias = Callable[[str, int, int, int, int], None]
"""Called every 50 ms with the stage's name, its number, the number of stages, bytes done, and bytes in all (0 if
unknown)."""
Progress: TypeAlias = bool | Look
"""``True`` for a bar of tqdm, which has to be installed; or a function; ``False`` for nothing."""

_log = logging.getLogger("thalweg")


def call(words: list[str], progress: Progress = False) -> str:
    """Does what the words of a command say. What the user should know at once is logged as a warning."""
    if progress is not True:
        if progress and not callable(progress):
            raise TypeError(f"progress={progress!r}: give True, False or a function")
        return _native.call(words, progress or None, _log.warning)
    bar = _Bar()
    try:
        return _native.call(words, bar.look, _log.warning)
    finally:
        bar.close()


class _Bar:
    """A bar for each stage, in a terminal or in a notebook."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as why:
            raise ModuleNotFoundError("progress=True shows a bar of tqdm: pip install tqdm", name="tqdm") from why
        self._tqdm: Any = tqdm
        self._bar: Any = None
        self._stage = ""

    def look(self, stage: str, index: int, stages: int, done: int, total: int) -> None:
        if not stage:
            return
        if stage != self._stage:
            self.close()
            self._stage = stage
            label = f"{index}/{stages} {stage}"
            self._bar = self._tqdm(desc=label, total=total or None, unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
