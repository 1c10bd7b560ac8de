"""The ``badm`` command, assembled from one file of ``badm.commands`` for each command."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from badm.processes import signals
from badm.processes.parent_death import exit_with_parent, started_by_torchrun

if TYPE_CHECKING:
    import typer

HELP = """Batch ADMM for deep learning: compare optimizers, train with them, check the theorem.

**Examples**

- `badm compare digits`
- `badm run digits --method badm`
- `badm list tasks image`
- `badm compare --help`
"""
EXTRA = (
    "filelock",
    "matplotlib",
    "numpy",
    "optuna",
    "plotly",
    "pytorch_optimizer",
    "rich",
    "schedulefree",
    "scipy",
    "sklearn",
    "typer",
)


def application() -> typer.Typer:
    """The commands as a typer application; needs the extra ``badm[bench]``.

    >>> [command.name for command in application().registered_commands]
    ['compare', 'run', 'reproduce', 'tune', 'report', 'merge', 'certify']
    """
    import typer

    from badm.commands import data, list_names, version
    from badm.commands.certify import certify
    from badm.commands.compare import compare
    from badm.commands.help_pages import Command, Group
    from badm.commands.merge import merge
    from badm.commands.report import report
    from badm.commands.reproduce import reproduce
    from badm.commands.run import run
    from badm.commands.tune import tune

    app = typer.Typer(
        help=HELP,
        cls=Group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_show_locals=False,
    )
    app.callback()(version.version)
    for command in (compare, run, reproduce, tune, report, merge, certify):
        app.command(command.__name__, cls=Command)(command)
    app.add_typer(list_names.app, name="list")
    app.add_typer(data.app, name="data")
    return app


def main() -> None:
    """Run the command line, or say in one sentence what has to be installed for it."""
    if started_by_torchrun():
        exit_with_parent()
    try:
        # Before anything is imported that takes long: Ctrl-C is to work from the first moment.
        with signals.handle_signals(announce=True):
            with signals.exit_on_signal():
                _require_extra()
                from badm.commands.exit_codes import usable_output

                app = application()
            with usable_output():
                app()
    except (signals.Stopped, SystemExit) as ended:
        # For typer any KeyboardInterrupt is 130.
        if isinstance(ended, SystemExit) and ended.code != 130:
            raise
        if signals.begin_exit():
            print("badm: interrupted", file=sys.stderr)
        sys.exit(signals.exit_code())


def _require_extra() -> None:
    # Looked for and not imported: most commands need only some of them, and --help none.
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        print(
            f'The badm command needs {", ".join(missing)}: pip install "badm[bench]" brings it.',
            file=sys.stderr,
        )
        sys.exit(2)
