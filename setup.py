"""Build the native extensions; everything else about the package stands in pyproject.toml.

Each binding in csrc/bindings becomes one module of pyengine._native and is compiled together with
the C units of csrc/core that it needs. Generated C stays under build/.
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CORE = "csrc/core"
BINDINGS = "csrc/bindings"

# No contraction: sums over rows are rounded as their documentation says, on every machine.
CFLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-D_GNU_SOURCE", "-ffp-contract=off"]

# module -> the C units it is linked with
MODULES: dict[str, list[str]] = {
    "hashing": ["hash.c"],
    "mapping": [],
    "copying": ["copy_job.c", "streaming.c"],
    "control": ["control.c"],
    "outputs": ["outputs.c"],
    "ring": [
        "append.c",
        "cold.c",
        "control.c",
        "dropped.c",
        "gather.c",
        "guard.c",
        "hash.c",
        "mapped.c",
        "marks.c",
        "pcg64.c",
        "priorities.c",
        "ring.c",
        "slots.c",
        "stacks.c",
        "steps.c",
        "streaming.c",
        "sum_tree.c",
        "windows.c",
    ],
}


def extension(module: str, units: list[str]) -> Extension:
    headers = sorted(str(path) for path in Path(CORE).glob("*.h"))
    bindings = sorted(str(path) for path in Path(BINDINGS).glob("*.px[di]"))
    return Extension(
        f"pyengine._native.{module}",
        sources=[f"{BINDINGS}/{module}.pyx", *(f"{CORE}/{unit}" for unit in units)],
        include_dirs=[CORE],
        depends=headers + bindings,
        extra_compile_args=CFLAGS,
        extra_link_args=["-Wl,-s"] if not os.environ.get("PYENGINE_DEBUG") else [],
        libraries=["dl", "m", "pthread"],
    )


setup(
    ext_modules=cythonize(
        [extension(module, units) for module, units in MODULES.items()],
        build_dir="build/cython",
        include_path=[BINDINGS],
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "embedsignature": True,
        },
    ),
)
