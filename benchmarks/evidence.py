"""Check that every number in README and docs matches the file it comes from.

    python benchmarks/evidence.py            # numbers without a source or unlike it; exit code 1
    python benchmarks/evidence.py --list     # every number, its line and its source

A number has a source if

- a claim of ``claims`` has an expression in its place, such as ``{steps('molecule', 'bbbp',
  'adam')}``: the number must be its value, rounded to the digits that are shown;
- a constant of ``claims`` says why it is not measured;
- or one of ``RULES`` recognises it as code, an address, a name such as CIFAR-10, part of a formula
  such as 1/σ, the level of an interval or a reference such as Table 1.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import claims
import sources

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
SIGNED = rf"[+−]?{NUMBER}"
TEXT = r"[^|]{0,60}?"
RULES = {
    "code": re.compile(r"^```.*?^```|^ {4,}\S[^\n]*$|`(?:[^`\n]|\n(?!\n))*`", re.M | re.S),
    "address": re.compile(r"\]\([^)]*\)|<!--.*?-->", re.S),
    "name": re.compile(r"[^\W\d_]+-?\d+(?:\.\d+)?"),
    "formula": re.compile(r"\d+(?:\.\d+)?[(/]*(?:\d − )?[α-ω]"),
    "level of an interval": re.compile(r"95 %\s+interval"),
    "reference": re.compile(r"(?:Table|Algorithm|section|arXiv) [\d.]*\d|^#+ \d+\.|^\d+\. ", re.M),
}

Span = tuple[int, int]


@dataclass(frozen=True)
class Number:
    page: str
    line: int
    text: str
    source: str


@dataclass(frozen=True)
class Stretch:
    """A part of a page as rendered; ``offsets`` are those of its characters in the page."""

    text: str
    offsets: list[int]

    def span(self, start: int, end: int) -> Span:
        return self.offsets[start], self.offsets[end - 1] + 1


@dataclass
class Check:
    """A page, the sources of its numbers and the problems found."""

    name: str
    raw: str
    covered: dict[Span, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def line(self, offset: int) -> int:
        return self.raw.count("\n", 0, offset) + 1


def as_rendered(raw: str, start: int = 0, end: int | None = None) -> Stretch:
    """Remove bold marks, addresses, comments and line ends.

    >>> as_rendered("in **[all](x.md)**\\n  3 <!-- not 2 --> cases").text
    'in all 3 cases'
    """
    end = len(raw) if end is None else end
    hidden: set[int] = set()
    for found in re.finditer(r"\*\*|<!--.*?-->", raw[start:end], re.S):
        hidden.update(range(*found.span()))
    for found in re.finditer(r"!?\[([^\]]*)\]\([^)]*\)", raw[start:end]):
        hidden.update({*range(*found.span())} - {*range(*found.span(1))})
    text, offsets = "", []
    for place, character in enumerate(raw[start:end]):
        if place in hidden or (character.isspace() and text.endswith(" ")):
            continue
        text += " " if character.isspace() else character
        offsets.append(start + place)
    return Stretch(text, offsets)


def agrees(shown: str, value: float | str) -> bool:
    """Whether a text is the value, rounded to the digits shown.

    >>> agrees("1,300", 1300.0), agrees("0.23", 0.2349), agrees("0.23", 0.2351), agrees("−4", -4.2)
    (True, True, False, True)
    """
    if isinstance(value, str):
        return shown == value
    mantissa, _, exponent = shown.replace(",", "").replace("−", "-").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    difference = abs(float(f"{mantissa}e{exponent or 0}") - value)
    return difference <= 0.5 * unit * (1 + 1e-9)


def check(name: str, raw: str) -> tuple[list[Number], list[str]]:
    """Return all numbers of a page with their sources, and the problems."""
    page, declared = Check(name, raw), claims.PAGES.get(name, claims.PageClaims())
    whole = as_rendered(raw)
    for claim in declared.claims:
        _compare(page, claim, whole)
    for head, row in declared.tables:
        for line in _rows(page, head):
            _compare(page, row, line, row=line.text.split("|")[1].strip())
    for text, why in declared.constants:
        found = _the_one(page, re.escape(text), whole, text)
        if found:
            page.covered.setdefault(whole.span(*found.span()), f"constant: {why}")
    for heading, why in declared.sections:
        page.covered.setdefault(_section(page, heading), f"constant: {why}")
    return _numbers(page), page.problems


def _compare(page: Check, claim: str, stretch: Stretch, **names: str) -> None:
    """Find the text of a claim and compare its numbers with the claim's expressions."""
    first, *literals = re.split(r"\{[^{}]*\}", claim)
    expressions = re.findall(r"\{([^{}]*)\}", claim)
    values, files = [], []
    for expression in expressions:
        sources.read.clear()
        try:
            values.append(eval(expression, {**sources.NAMES, **names}))
        except Exception as error:  # a changed result or a mistake in a claim may raise anything
            page.problems.append(f"{page.name}: {expression} cannot be read: {error!r}")
            return
        files.append(", ".join(sorted(sources.read)))
    pattern = re.escape(first)
    for value, literal in zip(values, literals, strict=True):
        slot = SIGNED if not isinstance(value, str) else TEXT if literal else re.escape(value)
        pattern += f"({slot}){re.escape(literal)}"
    found = _the_one(page, pattern, stretch, claim)
    if found is None:
        return
    for group, (expression, value, file) in enumerate(
        zip(expressions, values, files, strict=True), start=1
    ):
        span = stretch.span(*found.span(group)) if found[group] else (0, 0)
        page.covered[span] = f"{file or 'the page itself'}: {expression}"
        if not agrees(found[group], value):
            page.problems.append(
                f"{page.name}:{page.line(span[0])}: {found[group]!r} is shown where "
                f"{expression} of {file} is {value!r}"
            )


def _the_one(page: Check, pattern: str, stretch: Stretch, text: str) -> re.Match[str] | None:
    matches = list(re.finditer(pattern, stretch.text))
    if len(matches) == 1:
        return matches[0]
    where = f" in the line {stretch.text!r}" if stretch.text.startswith("|") else ""
    page.problems.append(
        f"{page.name} has {len(matches) or 'no'} places that read {text!r}{where}: "
        "its claim must name exactly one"
    )
    return None


def _rows(page: Check, head: str) -> Iterator[Stretch]:
    """Yield the rows of the table with this header line."""
    table = re.search(rf"^{re.escape(head)}\n\|[-:| ]+\n((?:\|.*\n)+)", page.raw, re.M)
    if table is None:
        page.problems.append(f"{page.name} has no table with the head {head!r}")
        return
    start = table.start(1)
    for line in table[1].splitlines():
        yield as_rendered(page.raw, start, start + len(line))
        start += len(line) + 1


def _section(page: Check, heading: str) -> Span:
    level = len(heading) - len(heading.lstrip("#"))
    section = rf"^{re.escape(heading)}$.*?(?=^#{{1,{level}}} |\Z)"
    found = re.search(section, page.raw, re.M | re.S)
    if found is None:
        page.problems.append(f"{page.name} has no section {heading!r}")
        return (0, 0)
    return found.span()


def _numbers(page: Check) -> list[Number]:
    by_rule = [(kind, m.span()) for kind, rule in RULES.items() for m in rule.finditer(page.raw)]
    for equation in re.findall(r"^ {4,}.* \((\d)\)$", page.raw, re.M):
        references = re.finditer(rf"\({equation}\)", page.raw)
        by_rule += [("equation", reference.span()) for reference in references]
    numbers = []
    for found in re.finditer(NUMBER, page.raw):

        def around(span: Span, start: int = found.start(), end: int = found.end()) -> bool:
            return span[0] <= start and end <= span[1]

        # The narrowest that covers it: an expression before its section.
        spans = sorted(filter(around, page.covered), key=lambda span: span[1] - span[0])
        kinds = [page.covered[span] for span in spans]
        kinds += [kind for kind, span in by_rule if around(span)]
        line = page.line(found.start())
        numbers.append(Number(page.name, line, found[0], kinds[0] if kinds else "none"))
        if not kinds:
            page.problems.append(f"{page.name}:{line}: {found[0]} has no source")
    return numbers


def pages() -> dict[str, str]:
    """Return the raw text of README and all of docs, by path."""
    files = [sources.ROOT / "README.md", *sorted((sources.ROOT / "docs").rglob("*.md"))]
    return {
        file.relative_to(sources.ROOT).as_posix(): file.read_text(encoding="utf-8")
        for file in files
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every number with its source")
    arguments = parser.parse_args()
    wrong: list[str] = []
    for name, raw in pages().items():
        numbers, problems = check(name, raw)
        wrong += problems
        if arguments.list:
            for number in numbers:
                place = f"{number.page}:{number.line}"
                print(f"{place:<28} {number.text:<10} {number.source}")
        else:
            measured = sum(n.source not in (*RULES, "none") for n in numbers)
            print(f"{name}: {len(numbers)} numbers, {measured} of them with a claim or a constant")
    for problem in wrong:
        print(problem)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
