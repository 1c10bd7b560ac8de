"""Train the paper's text classifier through Keras and through torch, with the same settings.

    BADM_DATA=... python benchmarks/keras_imdb.py -o results/keras_imdb.json

Model, reviews, batch size, number of steps, learning rate, warm-up and decay are the same;
initialisation and order of the reviews are each framework's own. One seed: the accuracies stand
beside each other to show that both train, not which is better.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch

from badm import bench
from badm.bench.tasks.text_classification import TextClassification

EXAMPLES = Path(__file__).parents[1] / "examples"


def in_torch(steps: int, seed: int) -> dict[str, float]:
    """Return the accuracies of ``badm run text-imdb --method badm`` with the example's settings."""
    with tempfile.TemporaryDirectory() as runs:
        done = bench.run(
            "text-imdb",
            "badm",
            setting={"lr": 1e-2},
            seed=seed,
            schedule="cosine",
            warmup=0.05,
            steps=steps,
            runs=runs,
            threads=torch.get_num_threads(),
            progress=False,
        )
        assert done is not None
        result = json.loads(done.to_json())["result"]
    return {"validation": result["score"], "test": result["test"]["accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2, help="of 250 steps (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    from keras_imdb import train

    task = TextClassification("cpu")
    steps = arguments.epochs * math.ceil(len(task.data().train.labels) / task.batch_size)
    found = {"torch": in_torch(steps, arguments.seed)}
    print(found, flush=True)
    found["keras"] = train("cpu", arguments.epochs, arguments.seed)
    for name, row in found.items():
        print(name, *(f"{split} {value:.1%}" for split, value in row.items()))
    if arguments.output:
        report = {
            "task": "text-imdb",
            "scale": "cpu",
            "steps": steps,
            "batch": task.batch_size,
            "setting": {"lr": 1e-2, "schedule": "cosine", "warmup": 0.05, "metric": "spectral"},
            "seed": arguments.seed,
            "keras backend": os.environ["KERAS_BACKEND"],
            "torch": version("torch"),
            "keras": version("keras"),
            "accuracy": {
                name: {split: round(value, 4) for split, value in row.items()}
                for name, row in found.items()
            },
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
