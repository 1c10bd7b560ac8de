"""Reports of a comparison: a page to look at, tables to paste, figures to print."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from badm.bench.records.comparisons import Comparison
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


def merge(sources: Iterable[Path | str], *, reference: str = "") -> Report:
    """Make one comparison from several, and run nothing.

    They must ask the same: the same tasks with the same data and budgets, as many trials, the same
    seeds. A method that two of them have with other results stands there twice, with its commit or
    version. Intervals and tests are computed anew from the values of all seeds.

    Args:
        sources: Files that ``Report.save`` has written as ``.json``, or folders of runs.
        reference: The method the others are tested against. Default: that of the first.

    Returns:
        The merged comparison, to print, save and show in a notebook.

    Raises:
        ValueError: if a source does not exist, or they cannot be compared; it says what differs.
        badm.bench.errors.StoreError: if a file cannot be read.

    Example:
        >>> import badm.bench
        >>> both = badm.bench.merge(["results/digits.json", "lion.json"])  # doctest: +SKIP
        >>> print(both)  # doctest: +SKIP
    """
    from badm.bench.analysis.merging import merge as merge_comparisons
    from badm.bench.report.result import Report

    found = load_comparisons(sources)
    if not found:
        raise ValueError("there is nothing to merge: no source was given")
    return Report(merge_comparisons(found, reference=reference))


def load_comparisons(sources: Iterable[Path | str]) -> dict[str, Comparison]:
    """Read comparisons from results files or folders of runs, by what they were named as."""
    found: dict[str, Comparison] = {}
    for source in map(Path, sources):
        if source.is_dir():
            found[str(source)] = report(source).comparison
        elif source.exists():
            found[str(source)] = _load(source)
        else:
            raise ValueError(f"there is no file or folder {source}")
    return found


def _load(path: Path) -> Comparison:
    from badm.bench import files
    from badm.bench.errors import StoreError
    from badm.bench.records.comparisons import from_json
    from badm.bench.records.runs import RUN_BYTES
    from badm.bench.records.schema import SchemaError

    try:
        return from_json(files.read_bounded(path, RUN_BYTES).decode())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {files.os_error_reason(error)}") from None
    except (SchemaError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not a saved comparison ({error})") from None
