"""The output of a study: JSON, and a table as Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from badm.bench.engine.environment import environment


def write(
    output: Path, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], table: str
) -> None:
    """Write rows, settings and environment to ``output``, and the table beside it as Markdown."""
    content = {"settings": settings, "environment": environment(), "rows": rows}
    output.write_text(json.dumps(content, indent=1) + "\n")
    listed = "".join(f"- {name}: {_formatted(value)}\n" for name, value in settings.items())
    script = Path(sys.argv[0]).name
    text = f"Made with `python benchmarks/{script}`.\n\n{listed}\n{table}"
    output.with_suffix(".md").write_text(text)


def _formatted(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_formatted, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
