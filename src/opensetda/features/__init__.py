"""Arithmetic on feature rows: alignment, scaling, smoothing."""
