"""`python -m pyengine`: the command line without its installed script."""

import sys

from pyengine.cli.main import main

sys.exit(main())
