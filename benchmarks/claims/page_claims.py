"""How the numbers of a page are declared."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class PageClaims:
    """The numbers of a page, and the source of each.

    Attributes:
        claims: Texts of the page, with expressions of ``sources`` in braces for measured numbers.
        tables: Header line of a table and a claim for each row, in which ``row`` is the first cell.
        constants: Texts whose numbers are not measured, and the reason.
        sections: Headings of sections whose other numbers are constants, and the reason.
    """

    claims: tuple[str, ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    sections: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: PageClaims) -> PageClaims:
        """Return the claims of a page that says what two others say."""
        return PageClaims(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
