"""One folder a run."""
