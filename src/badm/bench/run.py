"""One run: a method trains the model of a task, unless that has been done.

The result depends on the configuration alone. After a kill at any moment the same call goes on from
the last checkpoint and ends with the same trajectory, weights and score, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from badm.bench import store
from badm.bench.journal import BadCheckpoint
from badm.bench.method import Method
from badm.bench.store import Config, Run, Store, StoreError
from badm.bench.task import Task
from badm.bench.training import Interrupted, Options, Training


def run(
    config: Config, task: Task, method: Method, folder: Store, options: Options | None = None
) -> Run:
    """Do the run, or what is left of it, or read it if it has been done.

    If another process is at it, wait for that one. A run whose method raised is tried again.
    """
    options = options or Options()
    try:
        with _held(config, folder, options):
            folder.clear(config)
            done = _done(config, folder, options)
            if done is not None:
                return done
            try:
                _train(config, task, method, folder, options)
            except BadCheckpoint:
                _train(config, task, method, folder, options)
            ended = folder.read(config)
            assert ended is not None
            return ended
    except OSError as error:
        where = error.filename or folder.path(config)
        raise StoreError(f"cannot write {where}: {store.reason(error)}") from None


def _train(config: Config, task: Task, method: Method, folder: Store, options: Options) -> None:
    with Training(config, task, method, folder, options) as training:
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


def _done(config: Config, folder: Store, options: Options) -> Run | None:
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
