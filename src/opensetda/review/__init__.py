"""A page on which a person checks the labels of a run; `osda review` serves it."""
