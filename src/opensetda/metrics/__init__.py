"""ALL, OS, OS*, UNK, HOS, AUROC, OSCR and the calibration error."""

from opensetda.metrics.calibration_error import expected_calibration_error
from opensetda.metrics.open_set import OpenSetMetrics, evaluate

__all__ = ["OpenSetMetrics", "evaluate", "expected_calibration_error"]
