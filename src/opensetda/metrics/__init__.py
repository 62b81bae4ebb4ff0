"""ALL, OS, OS*, UNK, HOS, AUROC, OSCR and the calibration error."""

from opensetda.metrics.open_set import OpenSetMetrics, evaluate, expected_calibration_error

__all__ = ["OpenSetMetrics", "evaluate", "expected_calibration_error"]
