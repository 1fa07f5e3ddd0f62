"""The figures that pyengine promises, each measured against a limit found in the same run."""
