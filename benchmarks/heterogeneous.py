"""Compare modes of replicas with different data: two classes of Fashion-MNIST per rank.

Every mode gets the same number of trials (learning rate, and outer learning rate if it has one),
scored on the validation split; its best setting then runs on fresh seeds, and the test split is
evaluated once. There are eight classes, so that each of four ranks has two of its own. Real
processes over gloo, with the engine of ``badm compare``.

    BADM_DATA=... python benchmarks/heterogeneous.py
    BADM_DATA=... python benchmarks/heterogeneous.py --inner adam --trials 3 --seeds 1 --steps 400
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from reporting import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench import Score, Splits, Task, methods
from badm.bench.compare.trial_settings import trial_settings
from badm.bench.data import idx, path
from badm.bench.engine.ranks import Ranks, join_ranks
from badm.bench.engine.run import run_on_ranks
from badm.bench.method import Setting
from badm.bench.records.plans import TUNING_SEED
from badm.bench.records.runs import RunResult, RunStore
from badm.bench.tasks import FoundTask
from badm.processes.parent_death import exit_with_parent

RANKS, CLASSES, WIDTH = 4, 8, 64
MODES = ("average", "post-local", "diloco", "outer", "dual")


class TwoClassesEach(Task):
    """Eight classes of Fashion-MNIST, a perceptron with one hidden layer."""

    name = "fashion-eight"
    description = "Eight classes of Fashion-MNIST"
    dataset_name = "fashion-mnist"
    score = Score("accuracy", percent=True)
    batch_size = 32 * RANKS
    steps = 1600
    evaluate_every = 100
    keep = "last"  # the best would hide that a method oscillates

    def data(self) -> Splits:
        train, train_labels, test, test_labels = idx.load(path(self.dataset_name))
        x, y = _eight(train, train_labels)
        held_out = len(y) // 5
        return Splits(
            train=(x[:-held_out], y[:-held_out]),
            validation=(x[-held_out:], y[-held_out:]),
            test=_eight(test, test_labels),
        )

    def model(self, splits: Splits) -> nn.Module:
        return nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        x, y = split
        logits = model(x)
        accuracy = (logits.argmax(1) == y).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, y).item()}


def _eight(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    some = labels < CLASSES
    return images[some].flatten(1).float() / 255, labels[some].long()


def study(ranks: Ranks, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Do all runs, as one of the ranks; the first returns the results."""
    task, store = TwoClassesEach(), RunStore(folder)
    found = FoundTask(task.name, task, str(task.version), None, Path.cwd())
    rows = []

    def one(name: str, setting: Setting, seed: int, *, test: bool) -> RunResult:
        method = methods.find(name)
        full = method.setting({"ranks": RANKS, "shards": asked.shards, **setting})
        config = found.config(method, full, seed, steps=asked.steps, test=test)
        done = run_on_ranks(ranks, config, task, method, store)
        result = ranks.from_first(None if done is None else done.result)
        assert result is not None
        return result

    for inner in asked.inner:
        for mode in (*MODES, "step"):
            name = f"{inner}+{mode}"
            every = {} if mode == "step" else {"every": asked.every}
            settings = [s | every for s in trial_settings(methods.find(name).space, asked.trials)]
            tried = [one(name, setting, TUNING_SEED, test=False) for setting in settings]
            # Of the last weights, so that an oscillating method is not measured at its best.
            scores = [_score(result) for result in tried]
            best = settings[max(range(asked.trials), key=lambda i: scores[i])]
            finals = [one(name, best, seed, test=True) for seed in range(asked.seeds)]
            rows.append(
                {
                    "method": name,
                    "setting": best,
                    "trials": [
                        {"setting": setting, "validation": score}
                        for setting, score in zip(settings, scores, strict=True)
                    ],
                    "test": [(result.test or {}).get("accuracy") for result in finals],
                }
            )
            if ranks.is_first:
                print(_line(rows[-1]), flush=True)
    return rows


def _score(result: RunResult) -> float:
    return -1.0 if result.status != "finished" or result.score is None else result.score


def _line(row: Mapping[str, Any]) -> str:
    tests = [value for value in row["test"] if value is not None]
    mean = f"{100 * sum(tests) / len(tests):.1f} %" if tests else "diverged"
    spread = f"{100 * min(tests):.1f}–{100 * max(tests):.1f}" if tests else ""
    rates = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
    return f"| {row['method']} | {mean} | {spread} | {rates} |"


def rank(number: int, store: str, asked: argparse.Namespace) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    exit_with_parent(parent.pid)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, RANKS), rank=number, world_size=RANKS
    )
    rows = study(join_ranks(), asked.runs, asked)
    if number == 0:
        settings = {
            "inner optimizers": asked.inner,
            "ranks": RANKS,
            "shards": asked.shards,
            "every": asked.every,
            "steps": asked.steps or TwoClassesEach.steps,
            "batch of a rank": TwoClassesEach.batch_size // RANKS,
            "trials": asked.trials,
            "seeds": asked.seeds,
        }
        head = "| method | test accuracy, mean | range | setting |\n| --- | ---: | ---: | --- |\n"
        table = head + "\n".join(map(_line, rows)) + "\n"
        write(asked.output, settings, rows, table)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--inner",
        nargs="+",
        default=["adam", "sgd"],
        help="inner optimizers (default: %(default)s)",
    )
    parser.add_argument(
        "--shards",
        choices=("labels", "even"),
        default="labels",
        help="which samples a rank has (default: %(default)s)",
    )
    parser.add_argument(
        "--every", type=int, default=20, help="steps between meetings (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, help="training steps")
    parser.add_argument(
        "--trials", type=int, default=9, help="trials per method (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="seeds of the final runs (default: %(default)s)"
    )
    parser.add_argument("--runs", type=Path, help="folder to keep runs in, to resume from")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/heterogeneous.json"),
        help="JSON file to write (default: %(default)s)",
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asked.runs = asked.runs or Path(scratch) / "runs"
        mp.spawn(rank, (f"{scratch}/store", asked), nprocs=RANKS)


if __name__ == "__main__":
    main()
