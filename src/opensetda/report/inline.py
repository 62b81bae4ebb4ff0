"""Figures of matplotlib inside the page: SVG whose colours are those of the page's theme."""

from __future__ import annotations

from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from opensetda.runs import figure_style as style

# Pixels of a point: at least, on a phone, where a chart scrolls; at most, as small print.
_LEAST, _MOST = 0.9, 1.35
_COLORS = {
    style.BLACK: "var(--ink)",
    style.BLUE: "var(--c0)",
    style.ORANGE: "var(--c1)",
    style.GREEN: "var(--c2)",
    style.PURPLE: "var(--c3)",
    style.YELLOW: "var(--c4)",
    style.SKY: "var(--c5)",
    style.GREY: "var(--muted)",
    style.PALE: "var(--edge)",
    style.LIGHT: "var(--track)",
}
_LINK = "{http://www.w3.org/1999/xlink}href"


def inline_svg(figure: Figure, words: str) -> Markup:
    """Return a figure as an SVG element; `words` describe it to those who do not see it."""
    # Text stays text, in the fonts of the page; ids are made from the words.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": words}):
        root = ElementTree.fromstring(style.figure_bytes(figure, "svg"))
    width = float(root.attrib["viewBox"].split()[2])
    linked = {node.attrib[_LINK] for node in root.iter() if _LINK in node.attrib}
    parents = {child: parent for parent in root.iter() for child in parent}
    for node in list(root.iter()):
        node.tag = node.tag.partition("}")[2]
        if node.tag == "style":
            # It would be a style of the whole page.
            parents[node].remove(node)
        if _LINK in node.attrib:
            node.attrib["href"] = node.attrib.pop(_LINK)
        if node.tag == "g" or (node.tag != "clipPath" and f"#{node.get('id')}" not in linked):
            node.attrib.pop("id", None)
        if "style" in node.attrib:
            node.attrib["style"] = _themed(node.attrib["style"])
        if node.tag != "text":
            node.text = None
        node.tail = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": words}
    size = f"min-width: {_LEAST * width:.0f}px; max-width: {_MOST * width:.0f}px"
    root.attrib |= {"class": "chart", "style": size}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _themed(declarations: str) -> str:
    """Return the style of a mark in the colours, and of words in the font, of the page."""
    kept = []
    for declaration in declarations.split("; "):
        name, _, value = declaration.partition(": ")
        if name != "font-family":
            kept.append(f"{name}: {_COLORS.get(value.upper(), value)}")
    return "; ".join(kept)
