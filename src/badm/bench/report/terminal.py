"""Consoles that print any text as it is, on a terminal, in a pipe or into a string.

Texts come from tasks, run files and file names. None of them is taken for rich's markup, and none
can send commands to a terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment

# Control characters except tabs and line ends, as the symbols Unicode has for them: ␛ for escape.
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

    Text that needs a style is a ``rich.text.Text``.
    """
    return _LiteralConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def plain_text(renderable: RenderableType, width: int) -> str:
    """What a console of that width would print, without colours and trailing spaces."""
    out = _LiteralConsole(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        out.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def text_column(template: str) -> TextColumn:
    """A column of a progress display, whose own markup has to be turned off."""
    return TextColumn(template, markup=False)


def visible(text: str) -> str:
    """Show control characters instead of sending them.

    >>> visible("one\\x1b[2J\\ntwo")
    'one␛[2J\\ntwo'
    """
    return text.translate(PICTURES)
