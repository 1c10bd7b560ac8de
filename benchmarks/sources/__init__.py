"""What the committed results say, in the terms in which README and docs speak of them.

``claims`` has an expression of these functions for every measured number of a page. Files that an
expression reads are noted in ``read``, which is where ``evidence.py`` learns what a number rests
on.
"""

from typing import Any

import badm
from sources import comparisons, files, reproduced, studies, theory
from sources.files import ROOT, read

NAMES: dict[str, Any] = {"badm": badm}
for module in (files, comparisons, reproduced, studies, theory):
    NAMES |= vars(module)

__all__ = ["NAMES", "ROOT", "read"]
