"""Progress of a call, shown by tqdm or given to a function, and its end from another thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from thalweg import _native
from thalweg.errors import Cancelled

Look: TypeAlias = Callable[[str, int, int, int, int], None]
"""Called every 50 ms, and at the end of each stage, with the stage's name, its number, the number of stages, bytes
done, and bytes in all (0 if unknown)."""
Progress: TypeAlias = bool | Look
"""``True`` for a bar of tqdm, which has to be installed; or a function; ``False`` for nothing."""

_log = logging.getLogger("thalweg")


class Cancel:
    """Ends calls from another thread: each call that it is given to, now or later, raises :class:`thalweg.Cancelled`.

    What is left is what Ctrl-C leaves: inputs and older outputs as they were.

    >>> import thalweg
    >>> stop = thalweg.Cancel()
    >>> stop.cancel()
    >>> thalweg.gen("1k", "records", cancel=stop)
    Traceback (most recent call last):
    thalweg.errors.Cancelled: the call was cancelled
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Ends the calls, within a second. Any thread may say so, and a signal handler."""
        self._event.set()

    def check(self) -> None:
        """Raises :class:`thalweg.Cancelled` if it was cancelled."""
        if self._event.is_set():
            raise Cancelled("the call was cancelled")


def call(
    verb: str,
    words: list[str],
    options: dict[str, Any],
    progress: Progress = False,
    cancel: Cancel | None = None,
) -> str:
    """Does what the verb is asked: ``words`` are names of files and the like, and ``options`` the keywords that its
    table has. What the user should know at once is logged as a warning."""
    asked = (verb, words, options)
    if cancel is not None:
        cancel.check()
    if progress is not True:
        if progress and not callable(progress):
            raise TypeError(f"progress={progress!r}: give True, False or a function")
        return _watched(asked, progress or None, cancel)
    bar = _Bar()
    try:
        return _watched(asked, bar.look, cancel)
    finally:
        bar.close()


def _watched(asked: tuple[str, list[str], dict[str, Any]], show: Look | None, cancel: Cancel | None) -> str:
    """The same, with a function that shows the progress: each stage that ends is shown as done."""
    last = ("", 0, 0, 0, 0)

    def look(*seen: *tuple[str, int, int, int, int]) -> None:
        nonlocal last
        if cancel is not None:
            cancel.check()
        if show is None or not seen[0]:
            return
        if last[0] and seen[:2] != last[:2]:
            show(*_done(last))
        last = seen
        show(*seen)

    text, seen = _native.call(*asked, None if show is None and cancel is None else look, _log.warning)
    if show is not None and seen[0]:
        show(*_done(seen))
    return text


def _done(seen: tuple[str, int, int, int, int]) -> tuple[str, int, int, int, int]:
    """The end of a stage, of which this was seen."""
    stage, index, stages, done, total = seen
    return stage, index, stages, total or done, total


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
        if stage != self._stage:
            self.close()
            self._stage = stage
            label = f"{index}/{stages} {stage}"
            self._bar = self._tqdm(desc=label, total=total or None, unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
