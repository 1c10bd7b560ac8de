"""stdout and stderr that take any text, whatever characters the terminal can show."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

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


def spelt_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that an encoding does not have; an error handler for codecs.

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
    """Drop what cannot be written: Python would try again at exit, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
