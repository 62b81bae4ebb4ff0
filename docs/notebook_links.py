"""A hook of MkDocs: links of notebooks to other pages, which mkdocs-jupyter leaves as written."""

from __future__ import annotations

import logging
import posixpath
import re
from typing import Any

from mkdocs.utils import get_relative_url

_LINK = re.compile(r'href="([^":#]+\.(?:md|ipynb))((?:#[^"]*)?")')


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Turn ``href="../metrics.md"`` into the address of that page; a lost one fails the build."""
    here = page.file
    if not here.src_uri.endswith(".ipynb"):
        return html

    def address(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here.src_uri), link[1]))
        file = files.get_file_from_path(place)
        if file is None:
            logging.getLogger("mkdocs").warning("%s: no page %s", here.src_uri, link[1])
            return link[0]
        return f'href="{get_relative_url(file.url, here.url)}{link[2]}'

    return _LINK.sub(address, html)
