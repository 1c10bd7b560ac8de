"""The form in which a page's numbers are written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What a page says in numbers, and what each of them rests on.

    A claim is the text of a page as it reads, with an expression of ``sources.py`` in braces where
    a measured number stands. A table is the line of its head and a claim for every row, in which
    ``row`` is the first cell. A constant is a text whose numbers nobody measures, with the reason;
    in a section all numbers without a claim of their own are constants.
    """

    claims: tuple[str, ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    sections: tuple[tuple[str, str], ...] = ()
