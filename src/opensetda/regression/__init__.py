"""Kernel regression: DAOD, a rival that also judges the scaling of MovingMeans."""
