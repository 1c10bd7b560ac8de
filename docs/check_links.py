"""Sphinx: warn of links within the site that lead nowhere, once it is written.

Sphinx checks the references that it makes. This looks at the pages as a browser does: at every
address of a link, picture, script or style.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Page(HTMLParser):
    """The ids of a page, the addresses it has, and those of the parts that a browser loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: set[str] = set()
        self.parts: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.addresses.add(value)
                if tag != "a":
                    self.parts.add(value)


@cache
def read(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))


def broken_links(site: Path) -> Iterator[str]:
    """Yield each address within the site that no file or no id answers to, after its page."""
    for file in sorted(site.rglob("*.html")):
        for address in sorted(read(file).addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file.resolve()
            named = unquote(parts.fragment)
            if not target.is_file() or (named and named not in read(target).ids):
                yield f"{file.relative_to(site)}: {address}"


def warn_of_broken_links(app: Sphinx, failed: Exception | None) -> None:
    from sphinx.util.logging import getLogger

    if failed is None and app.builder.name == "html":
        for link in broken_links(Path(app.outdir)):
            getLogger(__name__).warning("a link leads nowhere: %s", link)


def setup(app: Sphinx) -> None:
    app.connect("build-finished", warn_of_broken_links)
