"""Child of test_ring_control: look up the segment that the trainer says is there, again and again.

Arguments: descriptor and size of the ring's arena. Prints when it was given enough
records, and in the end how many, and those that are not of one file.
"""

from __future__ import annotations

import sys

from pyengine._native.control import RingControl
from pyengine.shm.arena import Arena

ENOUGH = 2000

with Arena.attach(int(sys.argv[1]), int(sys.argv[2])) as arena:
    control = RingControl(arena.mapping)
    print("ready", flush=True)
    found, torn = 0, []
    while (segment := control.line) != 0:
        record = control.place(0, segment)
        if record is not None:
            found += 1
            if record != (segment,) * 7:
                torn.append((segment, record))
            if found == ENOUGH:
                print("enough", flush=True)
    print(found, torn[:3], flush=True)
    control.release()
