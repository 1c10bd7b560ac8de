"""Fields of MATLAB files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def fields(file: Path, names: Sequence[str], error: type[ValueError]) -> list[Any]:
    """The arrays of those names; what is wrong with a file is an ``error`` that names it."""
    from scipy.io import loadmat

    try:
        found = loadmat(str(file), appendmat=False, variable_names=list(names))
    except FileNotFoundError as failure:
        raise error(f"{file} is missing") from failure
    # What is no MATLAB file, or a broken one, makes scipy raise errors of a dozen kinds.
    except Exception as failure:
        why = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        raise error(f"{file} cannot be read as a MATLAB file: {why}") from failure
    for name in names:
        if name not in found:
            raise error(f"{file}: has no field {name}")
    return [found[name] for name in names]
