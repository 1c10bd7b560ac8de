"""Do one run, in which a method trains the model of a task, unless it has been done.

The result depends on the configuration alone. After a kill at any moment the same call resumes from
the last checkpoint and ends with the same trajectory, weights and score, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from badm.bench import files
from badm.bench.engine.function_run import FunctionRun
from badm.bench.engine.journal import BadCheckpoint
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.ranks import SINGLE_PROCESS, Ranks
from badm.bench.engine.training import Interrupted, Training
from badm.bench.errors import StoreError
from badm.bench.method import Method
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.training_function import Runnable, TrainingFunction
from badm.bench.user_code.local_modules import local_imports
from badm.distributed.ranks import require_same


def run(
    config: RunConfig,
    task: Runnable,
    method: Method,
    store: RunStore,
    options: RunOptions | None = None,
    machine: Machine | None = None,
) -> Run:
    """Do a run, or what is left of it, or read it if it has been done.

    If another process is doing it, wait for that one. A run whose method raised is tried again.
    """
    finished = run_on_ranks(SINGLE_PROCESS, config, task, method, store, options, machine)
    assert finished is not None
    return finished


def run_on_ranks(
    ranks: Ranks,
    config: RunConfig,
    task: Runnable,
    method: Method,
    store: RunStore,
    options: RunOptions | None = None,
    machine: Machine | None = None,
) -> Run | None:
    """Do a run as one of several ranks. The first rank returns the run, the others ``None``."""
    options, machine, store = options or RunOptions(), machine or Machine(), store.anchored()
    _check(ranks, config, method, machine)
    try:
        with _locked(config, store, options) if ranks.is_first else nullcontext():
            finished = None
            if ranks.is_first:
                store.remove_partial_files(config)
                finished = finished_run(config, store, options)
            if ranks.from_first(finished is not None):
                return finished
            try:
                _train(ranks, config, task, method, store, machine, options)
            except BadCheckpoint:
                _train(ranks, config, task, method, store, machine, options)
            return store.read(config) if ranks.is_first else None
    except OSError as error:
        where = error.filename or store.path(config)
        raise StoreError(f"cannot write {where}: {files.os_error_reason(error)}") from None


def _check(ranks: Ranks, config: RunConfig, method: Method, machine: Machine) -> None:
    """Refuse another device, or other threads or ranks, than the run is filed under."""
    if config.device != machine.device:
        raise ValueError(
            f"the run is filed under device {config.device}, and this process has {machine.device}"
        )
    threads = torch.get_num_threads()
    if config.threads != threads:
        raise ValueError(
            f"the run is filed under {config.threads} threads, and torch has {threads}"
        )
    wanted = method.ranks(dict(config.setting))
    if wanted != ranks.size:
        raise ValueError(f"{config.method} needs {wanted} ranks, and there are {ranks.size}")
    require_same([each.to_dict() for each in ranks.all_gather(config)])


def _train(
    ranks: Ranks,
    config: RunConfig,
    task: Runnable,
    method: Method,
    store: RunStore,
    machine: Machine,
    options: RunOptions,
) -> None:
    with local_imports(task):
        training: Training | FunctionRun
        if isinstance(task, TrainingFunction):
            training = FunctionRun(config, task, method, store, machine, options)
        else:
            training = Training(config, task, method, store, machine, options, ranks)
        with training:
            training.run()


@contextmanager
def _locked(config: RunConfig, store: RunStore, options: RunOptions) -> Iterator[None]:
    """Hold the run for this process, after waiting for any other that has it."""
    while True:
        with store.lock(config, timeout=0.2) as held:
            if held:
                yield
                return
        if options.should_stop():
            raise Interrupted


def finished_run(config: RunConfig, store: RunStore, options: RunOptions) -> Run | None:
    """Return the run if there is nothing left to do."""
    try:
        found = store.finished(config, with_weights=options.keep_weights)
    except StoreError:
        store.quarantine(store.path(config))
        return None
    if found is not None:
        store.checkpoint(config).unlink(missing_ok=True)
    return found
