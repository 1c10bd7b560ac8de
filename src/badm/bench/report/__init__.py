"""Reports of a comparison: a page to look at, tables to paste, figures to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from badm.bench.report.result import Report


def report(runs: Path | str = "runs", *, comparison: Path | str | None = None) -> Report:
    """Make the report of a comparison from its runs alone.

    Neither tasks nor methods are needed, and nothing is trained. A comparison that is still
    running can be reported too: runs that are missing are listed as missing. Damaged files are
    named in the notes and left as they are.

    Args:
        runs: Folder of the runs.
        comparison: Which comparison: a file in ``runs/comparisons``. Default: the one written last.

    Returns:
        The comparison, to print, save and show in a notebook.

    Raises:
        ValueError: if there is no such folder, or no comparison in it that can be read.
        badm.bench.errors.StoreError: if ``comparison`` cannot be read.

    Example:
        >>> import badm.bench
        >>> result = badm.bench.report("runs")  # doctest: +SKIP
        >>> print(result)  # doctest: +SKIP
        >>> result.save("report.html", "table.md")  # doctest: +SKIP
    """
    from badm.bench.analysis.summaries import summarise  # not for `import badm.bench` to wait for
    from badm.bench.records.plans import latest_record, read_record
    from badm.bench.records.runs import RunStore
    from badm.bench.report.result import Report

    if not Path(runs).is_dir():
        raise ValueError(f"there is no folder {runs}")
    store = RunStore(runs)
    problems: list[str] = []
    if comparison is not None:
        record = read_record(Path(comparison))
    else:
        latest, problems = latest_record(store)
        if latest is None and problems:
            raise ValueError(f"{runs} has no comparison that can be read: {'; '.join(problems)}")
        if latest is None:
            raise ValueError(f"{runs} has no comparison yet: `badm compare digits` makes one")
        record = latest
    made = summarise(record, store)
    skipped = [f"Skipped: {problem}." for problem in [*problems, *store.read_all()[1]]]
    made.notes.extend(note for note in skipped if note not in made.notes)
    return Report(made)
