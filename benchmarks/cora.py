"""Two checks on Cora: the printed BADM behaves like SGD, and Adam at 1e-2 reaches known scores.

Five seeds of the DNN and the GNN, each run evaluated on the test split with the weights that were
best on the validation split:

- the paper's Algorithm 1 at its penalties (ρ, σ) = (200, 800), beside SGD at the paper's learning
  rate 1e-3, at the algorithm's own step 1/σ = 1.25e-3, and what the paper reports for both;
- Adam at 1e-2, the learning rate of the public Keras example, which should reach 0.72 (DNN) and
  0.77 (GNN).

    BADM_DATA=../shared/data python benchmarks/cora.py -o results/cora.json

Runs are kept in a folder: run the same command to resume. Beside the JSON it writes a table as
Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from badm.bench import tasks
from badm.bench.engine.environment import environment
from badm.bench.engine.run import run
from badm.bench.methods import find
from badm.bench.records.runs import RunStore

NETWORKS = ("node-cora-dnn", "node-cora-gnn")
SEEDS = (0, 1, 2, 3, 4)
CASES: dict[str, tuple[str, dict[str, float]]] = {
    "BADM as printed, (200, 800)": ("badm-printed", {"lr": 1 / 800, "beta": 0.2}),
    "SGD, lr 1e-3": ("sgd", {"lr": 1e-3}),
    "SGD, lr 1.25e-3": ("sgd", {"lr": 1.25e-3}),
    "Adam, lr 1e-2": ("adam", {"lr": 1e-2}),
}


def accuracies(name: str, case: str, store: RunStore) -> list[float]:
    """Return the test accuracies by seed."""
    task = tasks.find(name)
    called, given = CASES[case]
    method = find(called)
    found = []
    for seed in SEEDS:
        config = task.config(method, method.setting(given), seed)
        result = run(config, task.task, method, store).result
        if result is None or result.test is None:
            raise SystemExit(f"{name}, {case}, seed {seed}: {result and result.message}")
        found.append(result.test["accuracy"])
    return found


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """
    >>> print(table({"node-cora-dnn": {"Adam, lr 1e-2": [0.7, 0.8]}}))
    | test accuracy, mean of 2 seeds (least–greatest) | node-cora-dnn |
    | --- | ---: |
    | Adam, lr 1e-2 | 75.0 % (70.0–80.0 %) |
    """
    seeds = len(next(iter(next(iter(results.values())).values())))
    head = [f"test accuracy, mean of {seeds} seeds (least–greatest)", *results]
    lines = [head, ["---", *["---:"] * len(results)]]
    for case in next(iter(results.values())):
        lines.append([case, *(_cell(cases[case]) for cases in results.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.1%} ({min(values):.1%}–{max(values):.1%})".replace(
        "%–", "–"
    ).replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder to keep runs in")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = RunStore(options.runs)
    results: dict[str, dict[str, list[float]]] = {name: {} for name in NETWORKS}
    for name in NETWORKS:
        for case in CASES:
            results[name][case] = accuracies(name, case, store)
            print(f"{name}: {case}: {_cell(results[name][case])}", flush=True)
    if options.output:
        settings: dict[str, Any] = {
            "steps": {name: tasks.find(name).task.steps for name in NETWORKS},
            "seeds": SEEDS,
            "cases": CASES,
        }
        content = {"environment": environment(), "settings": settings, "test accuracy": results}
        options.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text(table(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
