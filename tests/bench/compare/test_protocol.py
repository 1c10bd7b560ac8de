"""Which runs make a comparison: equal searches, fresh seeds, stages, the paper's settings."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import create_engine, text

from badm.bench import methods, tasks
from badm.bench.analysis.summaries import summarise
from badm.bench.compare import protocol
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.workers import Job, RunFinished, WorkerDied, WorkerEvent
from badm.bench.errors import ProtocolError
from badm.bench.method import Choice, Method
from badm.bench.records.plans import TUNING_SEED, ComparisonRecord, MethodRecord, Plan
from badm.bench.records.runs import RunConfig, RunStore
from tests.helpers import QUICK_TASKS

PLAN = Plan((f"{QUICK_TASKS}:quick",), ("sgd", "adam"), trials=3, seeds=2, reference="sgd")


class Here:
    """Workers that do a run as soon as it is started, in this process."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.finished: list[WorkerEvent] = []
        self.done: list[RunConfig] = []

    @property
    def free(self) -> int:
        return 0 if self.finished else 1

    def start(self, job: Job) -> None:
        found = tasks.find(job.source, job.scale)
        options = RunOptions(keep_weights=job.keep_weights)
        run(job.config, found.task, methods.find(job.config.method), self.store, options)
        self.done.append(job.config)
        self.finished.append(RunFinished(job))

    def events(self, seconds: float) -> list[WorkerEvent]:
        events, self.finished = self.finished, []
        return events

    def stop(self) -> None:
        pass


class Deadly(Here):
    """A worker that dies so many times at the first run it is given."""

    def __init__(self, store: RunStore, deaths: int) -> None:
        super().__init__(store)
        self.deaths = deaths
        self.victim = ""

    def start(self, job: Job) -> None:
        self.victim = self.victim or job.config.key
        if job.config.key != self.victim or not self.deaths:
            return super().start(job)
        self.deaths -= 1
        self.finished.append(WorkerDied(job, "killed by SIGKILL, perhaps for lack of memory"))


def compare(plan: Plan, folder: Path, workers: Any = None, study: str = "") -> ComparisonRecord:
    store = RunStore(folder)
    return ComparisonRunner(plan, store, study).run(workers or Here(store))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ComparisonRecord]:
    """A folder in which ``PLAN`` has been carried out."""
    folder = tmp_path_factory.mktemp("compared")
    return folder, compare(PLAN, folder)


@pytest.fixture
def copy(tmp_path: Path, compared: tuple[Path, ComparisonRecord]) -> Path:
    return shutil.copytree(compared[0], tmp_path / "copy")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("QUICK_LOG", str(path))
    return path


def heard(log: Path) -> Counter[str]:
    return Counter(line.partition(" ")[2] for line in log.read_text().splitlines())


def test_every_method_has_the_same_trials_and_keeps_the_best_of_them(
    compared: tuple[Path, ComparisonRecord],
) -> None:
    for entry in compared[1].entries:
        assert [trial.index for trial in entry.tried] == [0, 1, 2]
        scores = {trial.setting["lr"]: trial.score or 0.0 for trial in entry.tried}
        assert entry.setting is not None
        assert scores[entry.setting["lr"]] == max(scores.values()) > min(scores.values())
        assert [config.seed for config in entry.finals.values()] == [0, 1]
        assert all(config.setting == entry.setting for config in entry.finals.values())


@pytest.mark.slow
def test_the_search_can_be_for_the_fewest_steps(tmp_path: Path) -> None:
    record = compare(replace(PLAN, objective="steps", target=0.6), tmp_path)
    for entry in record.entries:
        steps = {trial.setting["lr"]: trial.steps_to_target for trial in entry.tried}
        assert entry.setting is not None
        assert steps[entry.setting["lr"]] == min(steps.values())  # type: ignore[type-var]


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "chosen"), [("score", 0.0949), ("steps", 0.949)])
def test_the_objective_decides_where_score_and_steps_disagree(
    tmp_path: Path, objective: Any, chosen: float
) -> None:
    """Long steps are at the target first, and shorter ones end with the better score."""
    plan = replace(PLAN, tasks=(f"{QUICK_TASKS}:hasty",), methods=("sgd",), objective=objective)
    (entry,) = compare(plan, tmp_path).entries
    tried = {trial.setting["lr"]: (trial.score, trial.steps_to_target) for trial in entry.tried}
    assert tried == {0.00949: (0.0, float("inf")), 0.0949: (1.0, 6), 0.949: (0.8, 2)}
    assert entry.setting is not None
    assert entry.setting["lr"] == chosen


@pytest.mark.slow
def test_for_a_sum_methods_that_step_as_the_gradient_does_search_lower(
    tmp_path: Path, compared: tuple[Path, ComparisonRecord]
) -> None:
    """SGD with a tenth of the rates does to a sum of ten what it does to the mean."""
    mean, summed = (
        {entry.method: entry for entry in record.entries}
        for record in (
            compared[1],
            compare(replace(PLAN, tasks=(f"{QUICK_TASKS}:summed",)), tmp_path),
        )
    )
    for method, factor in (("sgd", 10), ("adam", 1)):
        rates = [trial.setting["lr"] for trial in mean[method].tried]
        assert [trial.setting["lr"] * factor for trial in summed[method].tried] == pytest.approx(
            rates, rel=1e-2
        )
    assert [trial.score for trial in summed["sgd"].tried] == [
        trial.score for trial in mean["sgd"].tried
    ]


def test_a_comparison_with_other_threads_reuses_nothing(copy: Path) -> None:
    two = ComparisonRunner(replace(PLAN, threads=2), RunStore(copy))
    for pair in two.methods_on_tasks:
        job = pair.next_job()
        assert job is not None
        assert job.config.threads == 2
        assert RunStore(copy).read(job.config) is None
        pair.release()


@pytest.mark.slow
def test_a_method_of_another_version_is_searched_and_run_anew(
    copy: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = replace(methods.find("sgd"), version=99)
    monkeypatch.setitem(methods.METHODS, "sgd", raised)
    workers = Here(RunStore(copy))
    record = compare(PLAN, copy, workers)
    assert heard(log)["model quick"] == 3 + 2  # its trials and final runs, none of the other's
    of_sgd = [config for config in workers.done if config.method == "sgd"]
    assert {config.method_version for config in of_sgd} == {"99"}
    assert [facts.version for facts in record.methods] == ["99", "1"]


@pytest.mark.slow
def test_trials_never_read_the_test_split(tmp_path: Path, log: Path) -> None:
    compare(replace(PLAN, seeds=0), tmp_path)  # the search alone
    said = heard(log)
    assert said["model quick"] == 6
    assert said["read quick validation"] > 0
    assert said["read quick test"] == 0
    compare(PLAN, tmp_path)
    assert heard(log)["read quick test"] == 4  # two methods with two seeds, once each
    trials = [r for r in RunStore(tmp_path).read_all()[0] if r.config.seed == TUNING_SEED]
    assert len(trials) == 6
    assert all(r.result is not None and r.result.test is None for r in trials)


@pytest.mark.slow
def test_a_search_alone_is_no_comparison_to_report(tmp_path: Path) -> None:
    compare(replace(PLAN, seeds=0), tmp_path)
    assert not list(tmp_path.glob("comparisons/*.json"))


def test_what_has_been_done_is_not_done_again(
    copy: Path, log: Path, compared: tuple[Path, ComparisonRecord]
) -> None:
    assert compare(PLAN, copy).entries == compared[1].entries
    assert not heard(log)


class Unneeded(Here):
    """Workers that must not be started, but for the runs that are expected."""

    expected: tuple[int, ...] = ()  # their seeds

    def start(self, job: Job) -> None:
        assert job.config.seed in self.expected, "a worker would import torch to find it done"
        super().start(job)


def test_runs_that_are_done_need_no_worker_and_are_watched(
    copy: Path, compared: tuple[Path, ComparisonRecord]
) -> None:
    store, watched = RunStore(copy), []
    record = ComparisonRunner(PLAN, store).run(Unneeded(store), watched.append)  # type: ignore[arg-type]
    assert record.entries == compared[1].entries
    assert [type(event) for event in watched] == [RunFinished] * 4


@pytest.mark.parametrize("damage", ["cut", "checkpoint", "failed"])
def test_a_run_with_something_left_to_do_gets_a_worker(copy: Path, damage: str) -> None:
    store = RunStore(copy)
    (path,) = copy.glob("quick/adam-seed1-*.jsonl")
    whole = path.read_text()
    if damage == "checkpoint":  # of a process killed before it could remove it
        path.with_suffix(".checkpoint").touch()
    else:
        path.write_text(whole[:40] if damage == "cut" else whole.replace("finished", "failed"))
    workers = Unneeded(store)
    workers.expected = (1,)
    ComparisonRunner(PLAN, store).run(workers)  # type: ignore[arg-type]
    assert [(config.method, config.seed) for config in workers.done] == [("adam", 1)]
    assert not path.with_suffix(".checkpoint").exists()
    assert store.finished(workers.done[0], with_weights=False) is not None


def test_another_folder_with_the_same_study_does_no_trial_again(
    tmp_path: Path, compared: tuple[Path, ComparisonRecord]
) -> None:
    folder, one = compared
    workers = Here(RunStore(tmp_path))
    other = compare(PLAN, tmp_path, workers, f"sqlite:///{folder / 'search.db'}")
    assert {config.seed for config in workers.done} == {0, 1}  # of final runs alone
    assert other.entries == one.entries


def entries(record: ComparisonRecord) -> dict[tuple[str, str], MethodRecord]:
    return {(entry.task, entry.method): entry for entry in record.entries}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["tuned", "paper"])
def test_a_second_stage_starts_from_the_first_of_the_same_method_and_seed(
    tmp_path: Path, log: Path, protocol: Any
) -> None:
    plan = replace(PLAN, tasks=(f"{QUICK_TASKS}:second",), protocol=protocol, trials=2)
    found = entries(compare(plan, tmp_path))
    for method in plan.methods:
        first, second = found["first", method], found["second", method]
        for seed in range(plan.seeds):
            assert second.finals[seed].after == first.finals[seed]
            weights = torch.load(RunStore(tmp_path).weights(first.finals[seed]))
            assert heard(log)[f"start {' '.join(map(str, weights['weight'].flatten().tolist()))}"]
        assert len({config.after.key for config in second.finals.values() if config.after}) == 2


@pytest.mark.slow
def test_the_second_stage_is_tuned_on_the_first_at_its_tuned_setting(tmp_path: Path) -> None:
    plan = replace(PLAN, tasks=(f"{QUICK_TASKS}:second",), methods=("sgd",), trials=3)
    found = entries(compare(plan, tmp_path))
    trials = [
        one.config
        for one in RunStore(tmp_path).read_all()[0]
        if one.config.task == "second" and not one.config.test
    ]
    assert len(trials) == 3
    for config in trials:
        first = found["first", config.method]
        assert config.after == first.finals[TUNING_SEED]
        assert config.after.setting == first.setting
    assert {len(entry.tried) for entry in found.values()} == {3}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["tuned", "paper"])
def test_after_a_stage_that_diverged_the_next_says_so(tmp_path: Path, protocol: Any) -> None:
    plan = replace(PLAN, tasks=(f"{QUICK_TASKS}:ruins",), protocol=protocol, methods=("sgd",))
    record = compare(plan, tmp_path)
    rows = {(row.task, row.method): row for row in summarise(record, RunStore(tmp_path)).rows}
    assert rows["explosive", "sgd"].status == "diverged"
    assert rows["ruins", "sgd"].status == "failed"
    assert rows["ruins", "sgd"].message == (
        "seed 0: explosive, the stage before: the loss is nan at step 3"
    )


def test_the_paper_protocol_takes_settings_and_scores_from_the_task(tmp_path: Path) -> None:
    record = compare(replace(PLAN, protocol="paper"), tmp_path)
    found = summarise(record, RunStore(tmp_path))
    assert {row.method: row.setting["lr"] for row in found.rows} == {"sgd": 0.05, "adam": 0.05}
    assert {row.method: row.paper for row in found.rows} == {"sgd": None, "adam": 0.75}
    assert (found.tried, found.trials) == ([], 0)
    assert all(row.trials == 0 and row.searched == [] for row in found.rows)
    assert not list(tmp_path.glob("search.db*"))


@pytest.mark.slow
def test_a_setting_that_is_tried_twice_is_run_once_and_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sgd = methods.find("sgd")
    choosy = Method("choosy", "", "peer", sgd.build, sgd.defaults, {"lr": Choice((0.1, 1.0))})
    fixed = replace(choosy, name="fixed", space={})
    monkeypatch.setattr(methods, "METHODS", {"choosy": choosy, "fixed": fixed})
    workers = Here(RunStore(tmp_path))
    record = compare(
        replace(PLAN, methods=("choosy", "fixed"), trials=5, reference="fixed"), tmp_path, workers
    )
    assert [len(entry.tried) for entry in record.entries] == [5, 5]
    assert Counter(c.method for c in workers.done if not c.test) == {"choosy": 2, "fixed": 1}
    assert all(trial.status == "finished" for entry in record.entries for trial in entry.tried)


@pytest.mark.slow
def test_a_run_whose_process_died_is_started_once_more(
    tmp_path: Path, compared: tuple[Path, ComparisonRecord]
) -> None:
    survived = compare(PLAN, tmp_path, Deadly(RunStore(tmp_path), deaths=1))
    assert survived.entries == compared[1].entries


@pytest.mark.slow
def test_a_run_whose_process_died_twice_failed_and_the_rest_goes_on(tmp_path: Path) -> None:
    record = compare(PLAN, tmp_path, Deadly(RunStore(tmp_path), deaths=2))
    found = summarise(record, RunStore(tmp_path))
    assert sorted(trial.status for trial in found.tried) == ["failed"] + ["finished"] * 5
    assert {row.trials for row in found.rows} == {3}
    assert "sgd on quick: 1 of 3 trials failed." in found.notes
    again = compare(PLAN, tmp_path)  # as it may have been for a want of memory
    assert {trial.status for entry in again.entries for trial in entry.tried} == {"finished"}


def test_a_final_run_that_died_twice_says_how(tmp_path: Path) -> None:
    plan = replace(PLAN, protocol="paper")
    found = summarise(compare(plan, tmp_path, Deadly(RunStore(tmp_path), 2)), RunStore(tmp_path))
    rows = {row.method: row for row in found.rows}
    assert (rows["sgd"].status, rows["adam"].status) == ("failed", "finished")
    assert (
        rows["sgd"].message
        == "seed 0: its process died: killed by SIGKILL, perhaps for lack of memory"
    )


@pytest.mark.parametrize(
    "statement",
    ["delete from trials where number = 1", "update trials set state = 'FAIL' where number = 1"],
)
def test_unequal_trials_make_no_comparison(copy: Path, statement: str) -> None:
    engine = create_engine(f"sqlite:///{copy / 'search.db'}")
    with engine.begin() as connection:
        connection.execute(text(statement))
        connection.execute(text("delete from trial_user_attributes where key = 'ended'"))
    with pytest.raises(ProtocolError, match="equal trials"):
        compare(PLAN, copy)


def test_trials_are_counted_at_the_end_as_well(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(copy)
    runner = ComparisonRunner(PLAN, store)
    whole = ComparisonRunner._run_all

    def forget_one(self: ComparisonRunner, *arguments: Any) -> None:
        whole(self, *arguments)
        del self.methods_on_tasks[1].entry.tried[0]

    monkeypatch.setattr(ComparisonRunner, "_run_all", forget_one)
    with pytest.raises(ProtocolError, match=r"adam on quick has the trials \[1, 2\].*must have 3"):
        runner.run(Here(store))  # type: ignore[arg-type]


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="tasks must have different names, got quick from"):
        ComparisonRunner(replace(PLAN, tasks=PLAN.tasks * 2), RunStore(tmp_path))


def test_steps_to_a_target_need_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tasks.find(PLAN.tasks[0]).task), "target", None)
    with pytest.raises(ProtocolError, match=r"no target .* --target"):
        ComparisonRunner(replace(PLAN, objective="steps"), RunStore(tmp_path))
    ComparisonRunner(replace(PLAN, objective="steps", target=0.5), RunStore(tmp_path))


def test_who_waits_for_the_trials_of_another_process_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(protocol, "POLL_SECONDS", 0.01)
    study = f"sqlite:///{tmp_path / 'study.db'}"
    plan = replace(PLAN, methods=("sgd",), trials=1, reference="sgd")
    other = ComparisonRunner(plan, RunStore(tmp_path / "other"), study)
    assert other.methods_on_tasks[0].next_job() is not None
    said = []

    def say(message: str) -> None:
        said.append(message)
        raise KeyboardInterrupt  # as somebody might who reads it

    store = RunStore(tmp_path / "here")
    with pytest.raises(KeyboardInterrupt):
        ComparisonRunner(plan, store, study, say).run(Here(store))
    assert said == [
        "waiting for trial 0 of sgd on quick, running in other processes; a trial is taken over "
        "if its machine sends no heartbeat for 45 seconds"
    ]
