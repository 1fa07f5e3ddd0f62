"""The at-fork registry: every object is told in the child, none in the parent."""

from __future__ import annotations

import gc
import os

from pyengine.fs.forking import register_for_child


class Item:
    def __init__(self, fails=False):
        self.fails = fails
        self.told = False

    def _after_fork_in_child(self):
        self.told = True
        if self.fails:
            raise RuntimeError


def _in_child(check):
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_child_is_told_and_parent_is_not():
    items = [Item(), Item(fails=True), Item()]
    for item in items:
        register_for_child(item)
    assert _in_child(lambda: all(item.told for item in items))
    assert not any(item.told for item in items)


def test_registry_does_not_keep_objects_alive():
    item = Item()
    register_for_child(item)
    del item
    gc.collect()
    assert _in_child(lambda: True)
