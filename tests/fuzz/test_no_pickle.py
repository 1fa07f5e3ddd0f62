"""Nothing in the package reads what could run code, but one module that scripts ask for by name."""

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


DOOR = "capture/pickled.py"
"""The one module that may."""

BEHIND = {
    "__init__.py",
    "capture/build.py",
    "capture/kinds/pickled.py",
    "capture/load.py",
    "engine/groups.py",
    "porting/sb3.py",
}
"""Those that may name it: each asks for a name, or a file, that the caller allowed."""


def _trees() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def test_no_module_of_the_package_can_read_a_pickle() -> None:
    found = {path: [text.split(": ")[1] for text in _offences(tree)] for path, tree in _trees()}
    assert {path: texts for path, texts in found.items() if texts} == {DOOR: ["import pickle"]}


def _reaches(tree: ast.AST) -> bool:
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return any(str(text).endswith("capture.pickled") for text in [*names, *texts])


def test_few_modules_reach_the_one_that_can() -> None:
    assert {path for path, tree in _trees() if _reaches(tree)} <= BEHIND | {DOOR}
    assert _reaches(ast.parse((PACKAGE / "capture" / "load.py").read_text()))


def test_the_scan_sees_what_it_looks_for() -> None:
    code = "import pickle\nfrom marshal import loads\neval('1')\ntorch.load(p)\n"
    code += "np.load(p, allow_pickle=True)\n"
    assert len(list(_offences(ast.parse(code)))) == 6
