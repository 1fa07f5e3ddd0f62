"""One module per figure; see benchmarks.figure."""
