"""The ``badm`` command, assembled from one file of ``badm.commands`` for each command."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from badm.processes import signals
from badm.processes.parent_death import exit_with_parent, started_by_torchrun

if TYPE_CHECKING:
    import typer

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
    ['compare', 'run', 'reproduce', 'tune', 'report', 'certify']
    """
    import typer

    from badm.commands import (
        certify,
        compare,
        data,
        list_names,
        report,
        reproduce,
        run,
        tune,
        version,
    )

    app = typer.Typer(
        help="Batch ADMM for deep learning.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_show_locals=False,
    )
    app.callback()(version.version)
    app.command("compare")(compare.compare)
    app.command("run")(run.run)
    app.command("reproduce")(reproduce.reproduce)
    app.command("tune")(tune.tune)
    app.command("report")(report.report)
    app.command("certify")(certify.certify)
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
