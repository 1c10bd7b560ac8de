"""What commands print, on any terminal: texts as they are, whatever characters it can show.

Texts come from tasks, run files and file names. None of them is taken for rich's markup, none can
send a terminal commands of its own, and none can end a command with an encoding error.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment

SPELT_OUT = "badm-spelt-out"  # the name of the error handler
SPELLINGS = {
    "α": "alpha",
    "β": "beta",
    "δ": "delta",
    "η": "eta",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "∇": "grad ",
    "–": "-",
    "−": "-",
    "·": "*",
    "×": "x",
    "‖": "|",
    "≤": "<=",
    "≥": ">=",
    "²": "^2",
    "⁰": "^0",
    "…": "...",
}
# Control characters but tabs and line ends, as the pictures that Unicode has of them: ␛ for escape.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
PICTURES |= dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


class _LiteralConsole(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def console(*, stderr: bool = False) -> Console:
    """The console everything is printed with: no markup, no emoji codes, no guessed colours.

    What is to have a style is a ``rich.text.Text``.
    """
    return _LiteralConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def text_column(template: str) -> TextColumn:
    """A column of a progress display, which has a markup of its own to be turned off."""
    return TextColumn(template, markup=False)


def visible(text: str) -> str:
    """
    >>> visible("one\\x1b[2J\\ntwo")
    'one␛[2J\\ntwo'
    """
    return text.translate(PICTURES)


def spelt_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler: what stands for a character that an encoding does not have.

    >>> "σ ≥ 5·max(η, ρ) 🎈".encode("ascii", SPELT_OUT)
    b'sigma >= 5*max(eta, rho) ?'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, end = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return bytes([ord(character) - 0xDC00]), end
    return SPELLINGS.get(character, "?"), end


codecs.register_error(SPELT_OUT, spelt_out)


def spell_out() -> None:
    """Let stdout and stderr take any text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=SPELT_OUT)


def discard_output() -> None:
    """Let what cannot be written go nowhere: Python would try again when it ends, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
