"""Rows of replay buffers in and out: other libraries' files, npz, Minari's datasets.

`import_npz`, `import_sb3` and `import_tianshou` make a run directory whose one snapshot holds a
ring and nothing else, or with `into=` append to a ring that is there. `export_npz` and
`export_minari` write the rows of a snapshot's ring, whose run is neither claimed nor changed. They
work a few MiB at a time, verify what they read, and leave nothing where they fail.
"""

from pyengine.porting.arrival import Imported as Imported
from pyengine.porting.departure import Exported as Exported
from pyengine.porting.minari import export_minari as export_minari
from pyengine.porting.npz_in import import_npz as import_npz
from pyengine.porting.npz_out import export_npz as export_npz
from pyengine.porting.sb3 import import_sb3 as import_sb3
from pyengine.porting.tianshou import import_tianshou as import_tianshou

__all__ = [
    "Exported",
    "Imported",
    "export_minari",
    "export_npz",
    "import_npz",
    "import_sb3",
    "import_tianshou",
]
