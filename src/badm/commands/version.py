"""``badm --version``."""

from __future__ import annotations

from typing import Annotated

import typer

import badm


def _show(wanted: bool) -> None:
    if wanted:
        print(f"badm {badm.__version__}")
        raise typer.Exit


def version(
    wanted: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show, help="Show the version.")
    ] = False,
) -> None:
    """What ``badm`` takes before the name of a command."""
