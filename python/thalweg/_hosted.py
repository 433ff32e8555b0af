"""Where this user has the identities for clusters that Ray hosts. Once they are there, nothing of Ray is imported."""

from __future__ import annotations

import os
import re

from thalweg._names import text
from thalweg.errors import UsageError

PREFIX = "ray:"
"""What the name of a cluster begins with that Ray hosts."""

ADDRESS = "RAY_ADDRESS"
"""The variable that names the cluster of Ray."""

ADDRESS_FILE = "ray-address"
"""Where an identity keeps what it was when Ray was asked."""


def settings() -> str:
    """The directory of this user's settings."""
    return os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")


def directory(name: str) -> str:
    """The directory of the identity for the cluster of this name."""
    if not re.fullmatch("[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?", text("name", name)):
        raise UsageError(f"'{name}' is not a name for a cluster: use up to 63 letters, digits, '-' and '.'")
    return os.path.join(settings(), "thalweg", "ray", name)


def identity(name: str) -> str:
    """The same. Ray is asked for the identity if it is not there yet, or is of another cluster of Ray."""
    place = directory(name)
    if not os.path.isdir(place) or _is_of_another(place):
        from thalweg.ray import connect

        connect(name)
    return place


def _is_of_another(place: str) -> bool:
    """Whether another cluster of Ray was asked for this identity than the one that is named now."""
    try:
        with open(os.path.join(place, ADDRESS_FILE), encoding="utf-8") as file:
            return os.environ.get(ADDRESS, "") not in ("", file.read())
    except FileNotFoundError:
        return False  # It does not say.
