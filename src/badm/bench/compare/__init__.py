"""Which runs make a comparison: protocol, search, one method on one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from badm.bench.task import Scale, Task

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from badm.bench.compare.single_run import SingleRun
    from badm.bench.compare.tuning import Tuning
    from badm.bench.engine.workers import WorkerEvent
    from badm.bench.method import Method
    from badm.bench.report.result import Report
    from badm.bench.training_function import TrainingFunction

    TaskLike = str | type[Task] | TrainingFunction
    TasksLike = TaskLike | Iterable[TaskLike]
    MethodLike = str | type[Optimizer] | Method
    MethodsLike = MethodLike | Iterable[MethodLike]

# Every metric of BADM, the paper's baselines, and the strongest optimizers there are.
METHODS = (
    "badm,badm-printed,badm-diagonal,badm-kronecker,"
    "sgd,sgd-momentum,adagrad,rmsprop,adam,nadam,adamw,muon,soap,schedule-free"
)


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped a comparison. ``report`` has the runs that were done until then."""

    def __init__(self, report: Report) -> None:
        super().__init__("run the same comparison again to resume")
        self.report = report


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped a run between two steps."""

    def __init__(self, *, has_checkpoint: bool) -> None:
        where = "its checkpoint" if has_checkpoint else "the beginning"
        super().__init__(f"run the same command to resume from {where}")


def compare(
    tasks: TasksLike,
    methods: MethodsLike = METHODS,
    *,
    protocol: Literal["tuned", "speed", "paper"] = "tuned",
    trials: int = 6,
    seeds: int = 3,
    scale: Scale = "cpu",
    schedule: str | None = None,
    warmup: float | None = None,
    clip_norm: float = 0.0,
    search: str = "lr",
    space: Mapping[str, Any] | Iterable[str] = (),
    setting: Mapping[str, Any] | Iterable[str] | None = None,
    objective: Literal["score", "steps"] = "score",
    target: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seconds: float | None = None,
    reference: MethodLike = "",
    baseline: MethodLike = "adamw",
    others: Iterable[Path | str] = (),
    runs: Path | str = "runs",
    jobs: int | None = None,
    threads: int = 1,
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    study: str = "",
    progress: bool | Callable[[WorkerEvent], None] = False,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Compare methods on one or more tasks on equal terms.

    In the tuned protocol every method searches its own space with the same number of trials on the
    validation split; its best setting then runs on fresh seeds, and the test split is read once.
    In the speed protocol a baseline is tuned so at its whole budget of steps; every other method is
    tuned at parts of that budget, with its schedule fitted to each, to find the smallest part at
    which its runs end with a validation score as good as the baseline's.
    Finished runs are kept in a folder and not repeated: after an interruption the same call
    resumes. Runs are done by processes of their own, so that a script needs the usual
    ``if __name__ == "__main__":`` around the call.

    Args:
        tasks: One or several: names (``badm list tasks``), files such as ``"my_task.py"`` or
            ``"my_task.py:moons"``, classes made from :class:`badm.bench.Task` in a file, or
            functions marked with :func:`badm.bench.training`.
            ``"suite"`` stands for twelve, at least one of each kind in the paper.
        methods: Names (``badm list methods``), in a list or comma-separated; ``"all"`` and patterns
            such as ``"badm*"`` stand for several; ``"adam-untouched"`` is adam at its defaults,
            ``"badm[beta=0.95]"`` badm with that memory. Methods of your own: an optimizer class
            or a :class:`badm.bench.Method` of a file, or ``"mine.py:Mine"``.
        protocol: ``"tuned"``: as many trials for every method, then fresh seeds. ``"speed"``: the
            smallest part of the baseline's budget that reaches its score. ``"paper"``: the
            settings the paper states, or a method's defaults where it states none.
        trials: Settings to try, the same number for every method.
        seeds: Final runs per method and task, with the seeds 0, 1, 2, …
        scale: Size of the tasks: ``"smoke"`` (seconds), ``"cpu"``, or ``"paper"``.
        schedule: Learning-rate schedule: ``"constant"``, ``"linear"``, ``"cosine"``, ``"wsd"`` or
            a function in a file, ``"mine.py:falls"``, of the fraction of the steps that is done.
            Default: constant; in the speed protocol linear, down to 0 at the end of each part.
        warmup: Fraction of the steps over which the learning rate first rises from 0. Default: 0;
            in the speed protocol 0.05.
        clip_norm: Norm that gradients are clipped to. Default: they are not.
        search: What the trials search: ``"lr"``, the space that a method states, for most its
            learning rate; ``"wide"``, also the memory, ``beta2`` and weight decay it has; or names
            of settings, ``"lr,weight_decay,beta"``, tried at the same points for all methods.
        space: Ranges instead of the methods' own, by name: ``{"lr": (1e-4, 0.1)}``, or as
            ``["lr=1e-4..0.1"]``.
        setting: Settings of all methods that have them, which no trial changes:
            ``{"weight_decay": 0.1}``, or as ``["weight_decay=0.1"]``.
        objective: What the search optimizes: the best ``"score"``, or the fewest ``"steps"`` to the
            target.
        target: Validation score to count steps to. Default: the task's own.
        steps: Training steps of each run. Default: the task's own number; for tasks of the suite
            in the speed protocol the suite's, which is smaller.
        epochs: Passes through the training data, instead of steps.
        seconds: Seconds of training, instead of steps: a method takes as many steps as fit, by a
            short run that is timed first and kept.
        reference: The method the others are tested against. Default: ``"badm"`` if it takes part,
            else the first.
        baseline: Of the speed protocol: the method whose score at the whole budget is the target.
        others: Results to show in the same table without running them again, as :func:`merge`
            takes them. What cannot be compared with them is refused before anything is run.
        runs: Folder to keep runs in.
        jobs: Runs at a time. Default: one for each core, at most eight.
        threads: Threads per run. Part of a run's key: sums in another order are other numbers.
        device: Device of each run; ``"auto"`` is the accelerator if there is one. Part of a run's
            key.
        study: URL of a database through which several machines share the search. Default: a file
            in the folder of the runs.
        progress: True shows a progress bar on stderr; a function is called with each event.
        say: Called with messages such as what is being waited for. Default: they are logged.

    Returns:
        The comparison, to print, save and show in a notebook.

    Raises:
        ValueError: if a name or value cannot be used.
        badm.bench.errors.ProtocolError: if the plan contradicts itself.
        badm.bench.errors.TaskError: if the code of a task raises.
        badm.bench.errors.StoreError: if the folder of the runs cannot be written.
        ComparisonInterrupted: after Ctrl-C, with a report of the runs so far, if there are any.

    Example:
        >>> import badm.bench
        >>> result = badm.bench.compare(
        ...     "digits", ["badm", "adam"], trials=2, seeds=2, steps=50
        ... )  # doctest: +SKIP
        >>> print(result)  # doctest: +SKIP
        >>> result.save("report.html")  # doctest: +SKIP
    """
    # Here and not above: `import badm.bench` and `badm --help` are not to wait for them.
    from badm.bench.analysis.merging import check_mergeable, merge
    from badm.bench.compare.choices import (
        method_names,
        method_sources,
        named,
        range_texts,
        setting_texts,
        task_sources,
    )
    from badm.bench.compare.progress import watching
    from badm.bench.compare.protocol import ComparisonRunner, run_all
    from badm.bench.engine.options import Machine
    from badm.bench.records.plans import Plan
    from badm.bench.records.runs import RunStore
    from badm.bench.records.studies import WITH, study_of
    from badm.bench.report import load_comparisons
    from badm.bench.report.result import Report

    sources = method_sources(methods)
    names = method_names(sources)
    speed = protocol == "speed"
    reference, baseline = named(reference, names), named(baseline, names)
    if speed and baseline not in names:
        raise ValueError(f"baseline must be one of {', '.join(names)}, got {baseline!r}")
    earlier = load_comparisons(others)
    known = [*names, *(one.name for found in earlier.values() for one in found.methods)]
    if reference and reference not in known:
        raise ValueError(f"reference must be one of {', '.join(known)}, got {reference!r}")
    against = reference if reference in names else "badm" if "badm" in names else names[0]
    machine = Machine(threads=threads, device=device)
    plan = Plan(
        task_sources(tasks),
        sources,
        protocol,
        trials,
        seeds,
        scale,
        schedule or ("linear" if speed else "constant"),
        objective,
        target,
        steps,
        against,
        machine.threads,
        machine.device,
        (0.05 if speed else 0.0) if warmup is None else warmup,
        baseline if speed else "",
        search,
        range_texts(space),
        setting_texts(setting),
        clip_norm,
        epochs,
        seconds,
    )
    runner = ComparisonRunner(plan, RunStore(runs), study, say)
    for name, found in earlier.items():
        check_mergeable(name, found, "this comparison", runner.comparison(), seeds=seeds)

    def result() -> Report:
        if not earlier:
            return Report(runner.comparison())
        merged = merge({**earlier, "this comparison": runner.comparison()}, reference)
        options = {**study_of(replace(plan, reference=reference)), WITH: list(earlier)}
        return Report(replace(merged, study=options))

    try:
        with watching(progress, runner.methods_on_tasks) as watch:
            run_all([runner], jobs=jobs, machine=machine, watch=watch)
    except KeyboardInterrupt as interrupt:
        if not runner.has_final_runs:
            raise
        raise ComparisonInterrupted(result()) from interrupt
    return result()


def tune(
    task: TaskLike,
    method: MethodsLike,
    *,
    trials: int = 8,
    scale: Scale = "cpu",
    schedule: str = "constant",
    warmup: float = 0.0,
    clip_norm: float = 0.0,
    search: str = "lr",
    space: Mapping[str, Any] | Iterable[str] = (),
    setting: Mapping[str, Any] | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seconds: float | None = None,
    runs: Path | str = "runs",
    jobs: int | None = None,
    threads: int = 1,
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    study: str = "",
    progress: bool | Callable[[WorkerEvent], None] = False,
    say: Callable[[str], None] | None = None,
) -> Tuning:
    """Search for the best setting of a method on a task, judged on the validation split.

    The trials are those of :func:`compare`: a later comparison with the same number of trials
    reuses them. The test split is not read.

    Args:
        task: A name, a file or a class, as :func:`compare` takes them.
        method: A name, a class or a ``Method``, or several, as :func:`compare` takes them.
        trials: Settings to try, the same number for every method.
        scale: Size of the task: ``"smoke"`` (seconds), ``"cpu"``, or ``"paper"``.
        schedule: Learning-rate schedule: ``"constant"``, ``"linear"``, ``"cosine"``, ``"wsd"`` or
            a function in a file, ``"mine.py:falls"``.
        warmup: Fraction of the steps over which the learning rate first rises from 0.
        clip_norm: Norm that gradients are clipped to. Default: they are not.
        search: What the trials search, as in :func:`compare`.
        space: Ranges instead of the method's own, as in :func:`compare`.
        setting: Settings that no trial changes: ``{"weight_decay": 0.1}``.
        steps: Training steps of each run. Default: the task's own number.
        epochs: Passes through the training data, instead of steps.
        seconds: Seconds of training, instead of steps, as in :func:`compare`.
        runs: Folder to keep runs in.
        jobs: Runs at a time. Default: one for each core, at most eight.
        threads: Threads per run. Part of a run's key: sums in another order are other numbers.
        device: Device of each run; ``"auto"`` is the accelerator if there is one. Part of a run's
            key.
        study: URL of a database through which several machines share the search. Default: a file
            in the folder of the runs.
        progress: True shows a progress bar on stderr; a function is called with each event.
        say: Called with messages such as what is being waited for. Default: they are logged.

    Returns:
        The settings that were tried, and the best of them.

    Raises:
        The same errors as :func:`compare`.

    Example:
        >>> import badm.bench
        >>> result = badm.bench.tune("digits", "badm", trials=2, steps=50)  # doctest: +SKIP
        >>> result.settings["badm"]["lr"]  # doctest: +SKIP
    """
    from badm.bench.compare.choices import (
        method_sources,
        range_texts,
        setting_texts,
        task_sources,
    )
    from badm.bench.compare.progress import watching
    from badm.bench.compare.protocol import ComparisonRunner, run_all
    from badm.bench.compare.tuning import Tuning
    from badm.bench.engine.options import Machine
    from badm.bench.records.comparisons import score_from_info
    from badm.bench.records.plans import Plan
    from badm.bench.records.runs import RunStore

    sources = method_sources(method)
    machine = Machine(threads=threads, device=device)
    plan = Plan(
        task_sources(task),
        sources,
        trials=trials,
        seeds=0,  # a search alone
        scale=scale,
        schedule=schedule,
        steps=steps,
        reference="",
        threads=machine.threads,
        device=machine.device,
        warmup=warmup,
        search=search,
        space=range_texts(space),
        stated=setting_texts(setting),
        clip_norm=clip_norm,
        epoch_budget=epochs,
        second_budget=seconds,
    )
    runner = ComparisonRunner(plan, RunStore(runs), study, say)
    with watching(progress, runner.methods_on_tasks) as watch:
        run_all([runner], jobs=jobs, machine=machine, watch=watch)
    scores = {task.name: score_from_info(task) for task in runner.record.tasks}
    return Tuning(runner.record.entries, scores)


def run(
    task: TaskLike,
    method: MethodLike,
    *,
    setting: Mapping[str, Any] | None = None,
    seed: int = 0,
    replicas: str = "",
    scale: Scale = "cpu",
    schedule: str = "constant",
    warmup: float = 0.0,
    clip_norm: float = 0.0,
    steps: int | None = None,
    runs: Path | str = "runs",
    threads: int = 1,
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    checkpoint: float = 20.0,
    weights: bool = False,
    progress: bool | Callable[[int, float], None] = False,
) -> SingleRun | None:
    """Train a task with a method once.

    The trajectory is written to a file while it is measured. A run that was interrupted resumes
    with the same call and ends bit for bit as if it had not been; one that has ended is read and
    not repeated. The run is done in this process, whose random generators it seeds.

    Args:
        task: A name, a file or a class, as :func:`compare` takes them.
        method: A name (``badm list methods``), an optimizer class or a ``Method`` of a file.
        setting: Values by name, such as ``{"lr": 0.01}``. Default: the method's defaults.
        seed: Seed of initialisation, batches and noise.
        replicas: How several ranks meet, such as ``"outer"``. Default: one process.
        scale: Size of the task: ``"smoke"`` (seconds), ``"cpu"``, or ``"paper"``.
        schedule: Learning-rate schedule: ``"constant"``, ``"linear"``, ``"cosine"``, ``"wsd"`` or
            a function in a file, ``"mine.py:falls"``.
        warmup: Fraction of the steps over which the learning rate first rises from 0.
        clip_norm: Norm that gradients are clipped to. Default: they are not.
        steps: Training steps. Default: the task's own number.
        runs: Folder to keep runs in.
        threads: Threads of the run. Part of its key: sums in another order are other numbers.
        device: Device of the run; ``"auto"`` is the accelerator if there is one. Part of its key.
        checkpoint: Seconds between checkpoints.
        weights: Whether to keep the weights in a file.
        progress: True shows a progress bar on stderr; a function is called with each step and its
            loss.

    Returns:
        The run, to print or to show in a notebook; ``None`` on ranks other than the first.

    Raises:
        ValueError: if a name or value cannot be used.
        badm.bench.errors.TaskError: if the code of the task raises.
        badm.bench.errors.StoreError: if the folder of the runs cannot be written.

    Example:
        >>> import badm.bench
        >>> run = badm.bench.run("digits", "badm", steps=50)  # doctest: +SKIP
        >>> print(run)  # doctest: +SKIP
        >>> run.result.test["accuracy"]  # doctest: +SKIP
    """
    from badm.bench.compare.choices import task_sources
    from badm.bench.compare.single_run import find_method, run_once
    from badm.bench.engine.options import Machine, RunOptions

    (source,) = task_sources(task)
    return run_once(
        source,
        find_method(method, replicas),
        setting or {},
        runs,
        Machine(threads=threads, device=device),
        RunOptions(checkpoint_seconds=checkpoint, keep_weights=weights),
        seed=seed,
        scale=scale,
        schedule=schedule,
        warmup=warmup,
        clip_norm=clip_norm,
        steps=steps,
        progress=progress,
    )
