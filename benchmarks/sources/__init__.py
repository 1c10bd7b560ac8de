"""Functions that compute the numbers of README and docs from the committed results.

``claims`` has an expression of these functions for every measured number of a page. The files that
an expression reads are recorded in ``read``, from which ``evidence.py`` knows its source.
"""

from typing import Any

import badm
from sources import comparisons, files, reproduced, studies, suite, theory, trust
from sources.files import ROOT, read

NAMES: dict[str, Any] = {"badm": badm}
for module in (files, comparisons, reproduced, studies, suite, theory, trust):
    NAMES |= vars(module)

__all__ = ["NAMES", "ROOT", "read"]
