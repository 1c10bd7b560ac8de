"""Internal: options that users give to parameters by name."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from badm import metrics

Overrides = Mapping[str, str | Mapping[str, Any]]


def match_overrides(
    overrides: Overrides, module: nn.Module
) -> dict[nn.Parameter, tuple[str, dict[str, Any]]]:
    """Return pattern and options of every parameter that a pattern matches: of the first one.

    >>> model = nn.ModuleDict({"body": nn.Linear(2, 2, bias=False), "head": nn.Linear(2, 2)})
    >>> list(match_overrides({"head.*": "diagonal"}, model).values())
    [('head.*', {'metric': 'diagonal'}), ('head.*', {'metric': 'diagonal'})]
    >>> match_overrides({"haed.*": "diagonal"}, model)
    Traceback (most recent call last):
    ValueError: overrides has the pattern 'haed.*', which matches no parameter of the module
    """
    options = {pattern: _as_options(value) for pattern, value in overrides.items()}
    named = list(module.named_parameters(remove_duplicate=False))
    found: dict[nn.Parameter, tuple[str, dict[str, Any]]] = {}
    for pattern in options:
        matches = [p for name, p in named if fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(
                f"overrides has the pattern {pattern!r}, which matches no parameter of the module"
            )
        for p in matches:
            found.setdefault(p, (pattern, options[pattern]))
    return found


def _as_options(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an override; a name alone is that of a metric."""
    options = {"metric": value} if isinstance(value, str) else dict(value)
    if "metric" in options:
        metrics.find(options["metric"])
    return options
