"""Help pages that show what people type, and not which type Python has for it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def without_types(parameters: list[Any]) -> list[Any]:
    """Let flags, ``--help`` among them, and arguments show nothing between name and explanation.

    typer would show ``<bool>`` and ``<list[str]>``; other options state a metavar of their own.
    """
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command, for ``@app.command(cls=Command)``."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, for ``typer.Typer(cls=Group)``."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))
