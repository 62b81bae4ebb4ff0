"""How each method labels, in one sentence; and whether it trains anything."""

from __future__ import annotations

_TRAINED = {
    "pgl": "Progressive Graph Learning (Luo et al., ICML 2020): a graph network is trained in "
    "episodes, with pseudo-labels of the surest targets added step by step",
    "osbp": "OSBP (Saito et al., ECCV 2018): a network is trained against its own boundary of "
    "unknowns",
    "sta": "STA (Liu et al., CVPR 2019): a network is trained that separates unknowns before it "
    "aligns the domains",
    "dann": "DANN (Ganin et al., JMLR 2016): a network is trained against a discriminator of the "
    "domains; the least sure targets are unknown",
    "mmd": "DAN (Long et al., ICML 2015): a network is trained to bring the domains together by "
    "the maximum mean discrepancy; the least sure targets are unknown",
    "ovanet": "OVANet (Saito and Saenko, ICCV 2021): a network with one-vs-all classifiers is "
    "trained",
    "uniot": "UniOT (Chang et al., NeurIPS 2022): a network is trained with optimal transport to "
    "prototypes",
}
_NOT_TRAINED = {
    "moving-means": "class means of the source move to the surest targets in a few steps; a "
    "closed form, nothing is trained",
    "smoothed-means": "class means of rows smoothed over their neighbours move to the surest "
    "targets; nothing is trained",
    "class-means": "class means of the source move to the surest targets; nothing is trained",
    "source-only": "a linear classifier of the source alone; the least sure targets are unknown",
    "daod": "DAOD (Fang et al., TNNLS 2020): kernel regression with aligned domains and the open "
    "set difference, in closed form",
    "oslpp": "OSLPP (Wang et al., TAI 2024): a linear projection in closed form; targets are "
    "selected and rejected step by step",
    "ati": "ATI (Panareda Busto and Gall, ICCV 2017): targets are assigned to classes and the "
    "source is mapped to them, in turn",
}


def how_it_labels(method: str) -> str | None:
    """Return a sentence about a method, `dann+osvm` among them; None if there is none."""
    return (_TRAINED | _NOT_TRAINED).get(method.partition("+")[0])


def is_trained(method: str) -> bool:
    """Whether a method trains anything; one that is not of this package may."""
    return method.partition("+")[0] not in _NOT_TRAINED
