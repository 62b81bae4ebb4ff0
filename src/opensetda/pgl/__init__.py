"""Progressive Graph Learning (Luo et al., ICML 2020).

Reading order:

1. `settings`: every number, with where it comes from; `presets` has the paper's tables.
2. `episodes`: which samples form a graph.
3. `network`: how the nodes and edges of a graph are computed.
4. `losses`: what the network is trained to do.
5. `scoring`: how samples are scored; ranking is in `opensetda.methods.pseudo_labels`.
6. `training`: train on episodes, label all targets, mix them in, train again.
7. `estimator`: the scikit-learn classifier around it.

`taught` has what is ours: another method ranks the targets; `source_free` goes on from a run
without its source. `EQUATIONS` maps the numbered equations of the paper to the code.
"""

EQUATIONS: dict[int, str | None] = {
    1: "analyses.bound.measure_steps",
    2: "analyses.bound.measure_steps",
    3: "analyses.bound.proxy_a_distance",
    4: "analyses.bound.bound_terms",
    5: None,  # Eq. 4 without unknowns.
    6: "methods.pseudo_labels.rank_pseudo_labels",
    7: "analyses.bound.bound_terms",
    8: None,  # A statement about Eq. 4 and 7; nothing to compute.
    9: "pgl.network.GraphLayer",
    10: "pgl.network.GraphLayer",
    11: "pgl.losses.graph_losses",
    12: "methods.pseudo_labels.rank_pseudo_labels",
    13: "pgl.episodes.EpisodeSampler",
    14: "metrics.open_set.evaluate",
}
"""The object of `opensetda` that has an equation, by the number in the paper; None: not in code."""
