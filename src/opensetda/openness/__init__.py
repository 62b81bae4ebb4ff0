"""How many unknowns, which step to keep, what a confidence means: all without target labels."""
