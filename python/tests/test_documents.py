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
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

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
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("there is no pyright")
    for page in PAGES:
        use = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
        # fsspec has no types.
        text = "\n".join(block for block in use if "fsspec" not in block)
        (place / f"use_{Path(page).stem}.py").write_text(text)
    # Without Ray nothing is known of its types.
    left_out = [] if importlib.util.find_spec("ray") else ["thalweg/ray.py"]
    settings = {"typeCheckingMode": "strict", "include": ["."], "exclude": left_out}
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copytree(Path(thalweg.__path__[0]), place / "thalweg", symlinks=False)
    checked = subprocess.run([pyright, "--pythonpath", sys.executable], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_the_guide_run(place: Path, name: str) -> None:
    page = (ROOT / name).read_text()
    scope: dict[str, object] = {}
    for before, code in re.findall(r"(?:<!-- before: (.*?) -->\n)?```python\n(.*?)```", page, re.S):
        if before:
            subprocess.run(before, shell=True, check=True, env=os.environ)
        exec(compile(code, name, "exec"), scope)
