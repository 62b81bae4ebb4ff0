"""How good a method is after each of its steps (the paper's Figure 7).

The paper chooses its step from these curves, which needs target labels; here the last step is the
result. Figure 7 has ALL, OS and OS*; UNK and HOS are added.
"""

from __future__ import annotations

from opensetda.analyses.request import AnalysisResult, FittedTask
from opensetda.metrics.open_set import evaluate
from opensetda.report.charts import METRIC_STYLE, draw_lines, step_line
from opensetda.report.content import LinePanel

METRICS = ("all", "os", "os_star", "unk", "hos")


def analyse(fitted: FittedTask) -> AnalysisResult:
    """Score the labels of every step."""
    classifier = fitted.classifier
    rows = []
    lines = []
    for step, labels in enumerate(fitted.step_labels, start=1):
        decoded = classifier.decode_labels(labels)
        scores = evaluate(fitted.task.target_truth, decoded, classifier.classes_)
        rows.append({"step": step, **{name: getattr(scores, name) for name in METRICS}})
    for metric in METRICS:
        heading, look = METRIC_STYLE[metric]
        lines.append(step_line(heading, (row[metric] for row in rows), look, factor=100))
    title = f"{fitted.method} over its steps: {fitted.what}"
    figure = draw_lines([LinePanel("", "%", lines, percent=True)], title)
    columns = {"step": "step", **{name: f"{METRIC_STYLE[name][0]} %" for name in METRICS}}
    return AnalysisResult(title, columns, rows, figure)
