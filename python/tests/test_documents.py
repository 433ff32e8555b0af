"""What is written about the package: types, examples in docstrings, and the page of the guide."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from hosting import MACHINES

import thalweg

MODULES = sorted(info.name for info in pkgutil.iter_modules(thalweg.__path__, "thalweg."))
PAGES = ["docs/guide/python.md", "docs/guide/ray.md"]
OPTIONAL = {"thalweg.filesystem": "fsspec", "thalweg.ray": "ray"}


@pytest.mark.parametrize("name", ["thalweg", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_every_public_name_has_a_docstring() -> None:
    public = {name: getattr(thalweg, name) for name in thalweg.__all__}
    made = {name: value for name, value in public.items() if isinstance(value, type) or inspect.isfunction(value)}
    assert len(made) > 60 and [name for name, value in made.items() if not value.__doc__] == []


def test_pyright_accepts_the_package_and_its_use_in_strict_mode(place: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("there is no pyright")
    for page in PAGES:
        use = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
        # fsspec and Ray have no types.
        untyped = re.compile(r"import (fsspec|ray)\n")
        text = "\n".join(block for block in use if not untyped.search(block))
        (place / f"use_{Path(page).stem}.py").write_text(text)
    # Without Ray nothing is known of its types.
    left_out = [] if importlib.util.find_spec("ray") else ["thalweg/ray.py"]
    settings = {"typeCheckingMode": "strict", "include": ["."], "exclude": left_out}
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copytree(Path(thalweg.__path__[0]), place / "thalweg", symlinks=False)
    checked = subprocess.run([pyright, "--pythonpath", sys.executable], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def river(place: Path) -> Iterator[None]:
    """The cluster of the guide: two nodes, with files of their own."""
    own = Path(os.environ["XDG_CONFIG_HOME"], "thalweg")
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        ports = [free.getsockname()[1] for free in (one, other)]
    hosts = [f"n{i}=127.0.0.1:{port}@data={place}/n{i}" for i, port in enumerate(ports, 1)]
    subprocess.run(["thalweg", "cluster", "init", "river", *hosts, "-q"], check=True)
    nodes: list[subprocess.Popen[bytes]] = []
    for name in ("n1", "n2"):
        (place / name / "data").mkdir(parents=True)
        thalweg.gen("1k", place / name / "data/records")
        command = ["thalweg", "node", "run", "--identity", own / "hosts" / name]
        nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    for node in nodes:
        assert node.stdout and node.stdout.readline()
    yield
    for node in nodes:
        node.terminate()
        assert node.wait() == 0


def test_the_examples_of_the_guide_run(river: None, place: Path) -> None:
    page = (ROOT / "docs/guide/python.md").read_text()
    scope: dict[str, Any] = {}
    for before, code in re.findall(r"(?:<!-- before: (.*?) -->\n)?```python\n(.*?)```", page, re.S):
        if before:
            subprocess.run(before, shell=True, check=True, env=os.environ)
        exec(compile(code, "python.md", "exec"), scope)
    scope["on_the_cluster"]()
    assert sum((place / f"n{part + 1}/sorted-{part}").stat().st_size for part in range(2)) == 200_000


def test_the_examples_of_the_guide_run_on_ray(machines: Any, place: Path) -> None:
    import thalweg.ray

    page = (ROOT / "docs/guide/ray.md").read_text()
    for index in range(MACHINES):
        (place / f"n{index + 1}").mkdir()
        thalweg.gen("1k", place / f"n{index + 1}/records", start=index * 1_000)
    scope: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(code.replace('"/data"', f'"{place}/{{}}"'), "ray.md", "exec"), scope)
    scope["sort_on_ray"]()
    assert sum(path.stat().st_size for path in place.glob("n?/sorted-*")) == MACHINES * 100_000
    with thalweg.ray.cluster(MACHINES, memory="256MiB", data=f"{place}/{{}}", timeout=60):
        lines = re.findall(r"^\$ (thalweg .*)", page, re.M)
        assert len(lines) > 1
        for line in lines:
            subprocess.run(line, shell=True, check=True)
