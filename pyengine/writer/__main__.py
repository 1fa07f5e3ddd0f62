"""`python -m pyengine.writer <socket fd>`."""

from pyengine.writer.main import main

raise SystemExit(main())
