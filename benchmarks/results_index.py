"""Write the index of results: what each file shows, how it was made, and what is stale.

    python benchmarks/results_index.py        # results/index.json and results/README.md anew

``results/index.json`` is the table: for each name what it shows, the command and the commit whose
code made it, and what it measures. ``changes`` has the last commit that changed what a method, or
a part of the code, computes. Whatever was measured without that commit is stale. This script works
out the stale ones with git, the costs from the files, and where each is shown from the links of the
pages and from the sources of their numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evidence
from sources.files import ROOT, parsed

RESULTS = ROOT / "results"
INDEX = RESULTS / "index.json"
PAGE = RESULTS / "README.md"
LIMIT = 15_000_000  # bytes of all files of results

Entry = dict[str, Any]
Index = dict[str, Any]

HEAD = """\
# The files of results

Every figure of the pages comes from here. This page is written by
`python benchmarks/results_index.py` from [index.json](index.json); tests compare it with the files,
with the history and with the pages.

The commit is that whose code made the numbers; later ones may have shortened or redrawn a file.
**Stale** is what was measured before the last change of what it measures:

{changes}
"""
TABLE = "| files | what they show | commit | stale | shown on |\n|---|---|---|---|---|\n"
MADE = """
## How they were made

Scripts and tasks read real data from the folder that `BADM_DATA` names. Minutes are those of
training on one core, next to other work; trials of a search come on top and were not timed.

| files | command | cost |
|---|---|---|
"""


def load() -> Index:
    index: Index = json.loads(INDEX.read_text(encoding="utf-8"))
    return index


def name_of(file: str) -> str:
    """Return the name in the index of a file, given relative to results.

    >>> name_of("tuned/image-svhn.json"), name_of("detection-figures/detection-loss.png")
    ('tuned/image-svhn', 'detection')
    """
    folder = Path(file).parent.as_posix()
    if folder.endswith("-figures"):
        return folder.removesuffix("-figures")
    return Path(file).with_suffix("").as_posix()


def files() -> list[str]:
    """List the files of results, relative to it, but for those about other files."""
    found = (path for path in RESULTS.rglob("*") if path.is_file())
    names = (path.relative_to(RESULTS).as_posix() for path in found)
    return sorted(n for n in names if n != INDEX.name and Path(n).name != "README.md")


def comparisons(name: str) -> list[dict[str, Any]]:
    """Return the comparisons in a file of results, if that is what it holds."""
    file = RESULTS / f"{name}.json"
    content = parsed(file) if file.exists() else {}
    found = content.get("comparisons", [content])
    return [one for one in found if "rows" in one and "tried" in one]


def measures(entry: Entry) -> set[str]:
    """Return what an entry measures: what it states, and methods and tasks of its comparisons."""
    found = set(entry.get("measures", ()))
    for one in comparisons(entry["name"]):
        found |= {row["method"].removesuffix("-untouched") for row in one["rows"]}
        found |= {"node tasks" for row in one["rows"] if row["task"].startswith("node-")}
    return found


def cost(entry: Entry) -> str:
    """Count the runs of comparisons and add up their minutes; for others, say what is stated."""
    made = comparisons(entry["name"])
    if not made:
        return str(entry["cost"])
    curves = [curve for one in made for curve in one["curves"]]
    trials = sum(len(one["tried"]) for one in made)
    minutes = sum((curve["seconds"] or [0.0])[-1] for curve in curves) / 60
    searched = f" and {trials} trials" if trials else ""
    time = f"{minutes:,.0f} min" if minutes >= 1 else "under a minute"
    return f"{len(curves)} runs{searched}, {time}"


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def has_history() -> bool:
    """Whether git is there and knows all commits, which a shallow clone does not."""
    shallow = git("rev-parse", "--is-shallow-repository")
    return (ROOT / ".git").exists() and shallow.stdout.strip() == "false"


def stale(entry: Entry, changes: dict[str, Any]) -> list[str]:
    """Return what an entry measures that has changed since, by the history of git."""
    return [
        what
        for what in sorted(measures(entry) & set(changes))
        if git("merge-base", "--is-ancestor", changes[what]["commit"], entry["commit"]).returncode
    ]


def shown_on() -> dict[str, list[str]]:
    """Map each name of the index to the pages that link to its files or take numbers from them."""
    found: dict[str, set[str]] = {}
    pages = evidence.pages()
    guides = sorted(RESULTS.rglob("README.md"))
    texts = {p.relative_to(ROOT).as_posix(): p.read_text() for p in guides if p != PAGE} | pages
    for page, text in texts.items():
        folder = (ROOT / page).parent
        for file in files():
            link = f"]({relative(RESULTS / file, folder)}"
            if f"{link})" in text or f"{link}#" in text:
                found.setdefault(name_of(file), set()).add(page)
    for page, text in pages.items():
        for number in evidence.check(page, text)[0]:
            for file in sources_of(number.source):
                found.setdefault(name_of(file), set()).add(page)
    return {name: sorted(on) for name, on in found.items()}


def relative(file: Path, folder: Path) -> str:
    """Return the address of a file for the links of the pages in a folder."""
    return Path(os.path.relpath(file, folder)).as_posix()


def sources_of(source: str) -> Iterator[str]:
    """Yield the files of results that a number of a page is read from.

    >>> list(sources_of("results/a.json, signature of BADM: a('b') / results('c')"))
    ['a.json']
    """
    for part in source.partition(": ")[0].split(", "):
        if part.startswith("results/"):
            yield part.removeprefix("results/")


def links(entry: Entry) -> str:
    """Name an entry, with links to its files by their form, and to its figures further down."""
    own = [file for file in files() if name_of(file) == entry["name"]]
    plain = [file for file in own if "-figures/" not in file]
    shown = [f"[{Path(file).suffix.removeprefix('.')}]({file})" for file in plain]
    drawn = len(own) - len(plain)
    linked = ", ".join([*shown, f"[{drawn} figures](#figures)"] if drawn else shown)
    return f"{entry['name']}: {linked}"


def figures(entry: Entry) -> str:
    """Link to each figure of an entry."""
    own = [f for f in files() if name_of(f) == entry["name"] and "-figures/" in f]
    linked = ", ".join(f"[{Path(file).stem}]({file})" for file in own)
    return f"- {entry['name']}: {linked}." if own else ""


def page(index: Index) -> str:
    """Return the page of the index."""
    changes = "\n".join(
        f"- {name}: {change['what']} ({change['commit']}, {change['time'][:10]})."
        for name, change in index["changes"].items()
    )
    rows, made = [], []
    drawn = "\n".join(filter(None, map(figures, index["results"])))
    shown = shown_on()
    for entry in index["results"]:
        on = ", ".join(map(linked, shown.get(entry["name"], [])))
        old = ", ".join(entry["stale"]) or "–"
        rows.append(
            f"| {links(entry)} | {entry['shows']} | {entry['commit']} | {old} | {on or 'here'} |"
        )
        made.append(f"| {entry['name']} | `{entry['made']}` | {cost(entry)} |")
    parts = (HEAD.format(changes=changes), TABLE + "\n".join(rows), MADE + "\n".join(made))
    return "\n".join((*parts, f"\n## Figures\n\n{drawn}\n"))


def linked(page: str) -> str:
    """Link to a page; README.md is not on the site.

    >>> linked("docs/results.md"), linked("results/speed/README.md"), linked("README.md")
    ('[results](../docs/results.md)', '[speed/README](speed/README.md)', 'README')
    """
    name = page.removesuffix(".md")
    if page.startswith("results/"):
        return f"[{name.removeprefix('results/')}]({page.removeprefix('results/')})"
    return f"[{name.removeprefix('docs/')}](../{page})" if "/" in page else name


def renew(index: Index) -> Index:
    """Return the index with what is stale worked out anew."""
    for entry in index["results"]:
        entry["stale"] = stale(entry, index["changes"])
    return index


def main() -> None:
    if not has_history():
        raise SystemExit("what is stale is worked out with git: run this in a whole clone")
    index = renew(load())
    INDEX.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(index), encoding="utf-8")
    for entry in index["results"]:
        if entry["stale"]:
            print(f"stale: {entry['name']} ({', '.join(entry['stale'])})")


if __name__ == "__main__":
    main()
