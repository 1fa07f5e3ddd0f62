"""The supervisor: `pyengine run` starts a trainer, watches it, and starts it again."""
