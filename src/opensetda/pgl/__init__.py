"""Progressive Graph Learning (Luo et al., ICML 2020), one idea per file.

Reading order:

1. `training`: the loop of steps: train, score all targets, rank them, train again.
2. `trainer`: one step of training, with its schedule.
3. `episodes`: which samples form a graph.
4. `network` and `graph`: how the nodes and edges of a graph are computed.
5. `losses`: what the network is trained to do; `spread`: the metric it starts each step from.
6. `inference` and `pseudo_labels`: how all targets are scored and ranked.
7. `induction`: how samples that come after `fit` are scored.
8. `estimator`: the scikit-learn classifier around it; `settings`, `checkpoints` and `view`.

`EQUATIONS` maps the numbered equations of the paper to the code.
"""

EQUATIONS: dict[int, str | None] = {
    1: "analyses.bound.bound_terms",
    2: "analyses.bound.bound_terms",
    3: "analyses.bound.proxy_a_distance",
    4: "analyses.bound.BoundTerms.bound",
    5: None,  # Eq. 4 without unknowns.
    6: "pgl.pseudo_labels.rank_pseudo_labels",
    7: "analyses.bound.BoundTerms.progressive_bound",
    8: None,  # A statement about Eq. 4 and 7; nothing to compute.
    9: "pgl.graph.PaperLayer",
    10: "pgl.graph.PaperLayer.update_nodes",
    11: "pgl.losses.graph_losses",
    12: "pgl.pseudo_labels.rank_pseudo_labels",
    13: "pgl.episodes.EpisodeSampler",
    14: "metrics.open_set.evaluate",
}
"""The object of `opensetda` that has an equation, by the number in the paper; None: not in code."""
