"""Files of a directory: opened only when they are really in it."""

from __future__ import annotations

import os

import pytest

from pyengine.errors import DamageError
from pyengine.fs.beneath import open_beneath, read_beneath


@pytest.fixture
def root(tmp_path):
    (tmp_path / "outside").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_bytes(b"abc")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "sub-link").symlink_to(root / "sub")
    os.mkfifo(root / "fifo")
    return str(root)


def test_nested_file_is_read(root):
    assert read_beneath(root, "sub/file", limit_bytes=3) == b"abc"


@pytest.mark.parametrize(
    "relative",
    ["../outside", "sub/../../outside", "/etc/passwd", "", ".", "sub//file", "sub/./file",
     "link", "sub-link/file", "fifo", "sub", "a\0b"],
)  # fmt: skip
def test_what_leaves_the_directory_is_refused(root, relative):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DamageError):
        open_beneath(root, relative)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_missing_file_is_missing(root):
    with pytest.raises(FileNotFoundError, match="sub/none"):
        open_beneath(root, "sub/none")


def test_file_above_the_limit_is_refused(root):
    with pytest.raises(DamageError):
        read_beneath(root, "sub/file", limit_bytes=2)
