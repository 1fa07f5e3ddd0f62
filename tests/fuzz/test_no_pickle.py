"""Nothing in the package reads what could run code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyengine

PACKAGE = Path(pyengine.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load")}


def _offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in MODULES:
                    yield f"{node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"{node.lineno}: from {node.module}"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield f"{node.lineno}: {called.id}()"
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                if (called.value.id, called.attr) in LOADERS:
                    yield f"{node.lineno}: {called.value.id}.{called.attr}()"
                if called.attr == "import_module" and not isinstance(node.args[0], ast.Constant):
                    yield f"{node.lineno}: import_module of a name that is not written here"
            if any(word.arg == "allow_pickle" for word in node.keywords):
                yield f"{node.lineno}: allow_pickle="


def test_no_module_of_the_package_can_read_a_pickle() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += [
            f"{path.relative_to(PACKAGE)}:{text}" for text in _offences(ast.parse(path.read_text()))
        ]
    assert found == []


def test_the_scan_sees_what_it_looks_for() -> None:
    code = "import pickle\nfrom marshal import loads\neval('1')\ntorch.load(p)\n"
    code += "np.load(p, allow_pickle=True)\n"
    assert len(list(_offences(ast.parse(code)))) == 6
