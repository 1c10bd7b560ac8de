"""Sphinx: the site of docs/, results/ and the pages at the root.

    make docs                       # build/docs/index.html; a warning is an error

The source folder is the root of the repository and not docs/, so that a relative link leads to the
same page on the site, on a code host and in an editor.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "badm"
author = "The badm developers"
(release,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)

sys.path.insert(0, str(Path(__file__).parent))
extensions = [
    "check_links",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "results/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
]
exclude_patterns = [".*", "build", "dist", "runs"]  # folders that are not even looked into

myst_heading_anchors = 3
highlight_language = "text"  # an indented block is a command or an equation

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # torch documents what is torch's
maximum_signature_line_length = 80
add_module_names = False
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!badm\.).*"),  # other projects are not at hand to link to
    ("py:class", r"badm\.bench\.records\..*"),  # internal: what a report holds
    ("py:class", r"badm\.metrics\.protocol\.M"),  # a type variable
]

html_theme = "furo"
html_title = f"badm {release}"
html_extra_path = ["site"]  # index.html, which leads to the root document
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def add_missing_title(app: Sphinx, page: str, source: list[str]) -> None:
    """Give a page of results that begins with its table the name of its file as a title."""
    if not re.search(r"^# ", source[0], re.M):
        name = Path(page).name.replace("_", " ").capitalize()
        source[0] = f"# {name}\n\n{source[0]}"


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str | None] | None:
    """Show the names of a dataclass's fields alone: their types stand beside their explanations."""
    if not is_dataclass(thing):
        return None
    return f"({', '.join(field.name for field in fields(thing) if field.init)})", None


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_missing_title)
    app.connect("autodoc-process-signature", shorten_signature)
