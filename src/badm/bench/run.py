"""One run: a method trains the model of a task, unless that has been done.

The result depends on the configuration alone. After a kill at any moment the same call goes on from
the last checkpoint and ends with the same trajectory, weights and score, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from badm.bench import store
from badm.bench.journal import BadCheckpoint
from badm.bench.method import Method
from badm.bench.neighbours import imports_of
from badm.bench.store import Config, Run, Store, StoreError
from badm.bench.task import Task
from badm.bench.team import ALONE, Team
from badm.bench.training import Interrupted, Options, Training
from badm.company import require_same


def run(
    config: Config, task: Task, method: Method, folder: Store, options: Options | None = None
) -> Run:
    """Do the run, or what is left of it, or read it if it has been done.

    If another process is at it, wait for that one. A run whose method raised is tried again.
    """
    done = run_on(ALONE, config, task, method, folder, options)
    assert done is not None
    return done


def run_on(
    team: Team,
    config: Config,
    task: Task,
    method: Method,
    folder: Store,
    options: Options | None = None,
) -> Run | None:
    """The same as a rank of a team. The first one has the run, the others return nothing."""
    options, folder = options or Options(), folder.anchored()
    _check(team, config, method)
    try:
        with _held(config, folder, options) if team.leads else nullcontext():
            done = None
            if team.leads:
                folder.clear(config)
                done = done_before(config, folder, options)
            if team.first(done is not None):
                return done
            try:
                _train(team, config, task, method, folder, options)
            except BadCheckpoint:
                _train(team, config, task, method, folder, options)
            return folder.read(config) if team.leads else None
    except OSError as error:
        where = error.filename or folder.path(config)
        raise StoreError(f"cannot write {where}: {store.reason(error)}") from None


def _check(team: Team, config: Config, method: Method) -> None:
    """As many threads and ranks as the run is filed under, and all ranks for the same run."""
    threads = torch.get_num_threads()
    if config.threads != threads:
        raise ValueError(f"the run is to have {config.threads} threads, and torch has {threads}")
    wanted = method.ranks(dict(config.setting))
    if wanted != team.size:
        raise ValueError(f"{config.method} is to have {wanted} ranks, and there are {team.size}")
    require_same([each.plain() for each in team.every(config)])


def _train(
    team: Team, config: Config, task: Task, method: Method, folder: Store, options: Options
) -> None:
    with imports_of(task), Training(config, task, method, folder, options, team) as training:
        training.go()


@contextmanager
def _held(config: Config, folder: Store, options: Options) -> Iterator[None]:
    """The run for this process alone, however long another one may be at it."""
    while True:
        with folder.lock(config, patience=0.2) as held:
            if held:
                yield
                return
        if options.stop():
            raise Interrupted


def done_before(config: Config, folder: Store, options: Options) -> Run | None:
    """The run if there is nothing left to do."""
    try:
        found = folder.read(config)
    except StoreError:
        folder.set_aside(folder.path(config))
        return None
    if found is None or found.result is None or found.result.status == "failed":
        return None
    if options.keep_weights and not folder.weights(config).exists():
        return None if found.result.status == "finished" else found
    folder.checkpoint(config).unlink(missing_ok=True)
    return found
