"""How many targets are unknown, and what a confidence means: all without target labels."""
