"""Published benchmarks, class splits, simulated shifts and the embedded digits."""
