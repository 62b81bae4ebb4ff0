"""A page to check and correct the labels of a run, served by `osda review`."""
