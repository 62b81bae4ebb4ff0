"""Figures of the paper, one per file, each with a table."""
