"""Capture: from live objects to named tensors and a structure, and back in place."""
