"""Measure the time of loading images relative to a training step.

For each task of photographs or small images: all files decoded once and then mapped from the cache;
batches indexed from the decoded images; the same batches decoded from their files again, as without
a cache; and training steps (forward, backward, Adam) on them. The last three take turns, a turn is
one batch, and the result is the median over the turns of the ratio to the step of that turn.
All times are CPU seconds of one process. Absolute times depend on the machine.

    BADM_DATA=... python benchmarks/image_loading.py
    BADM_DATA=... python benchmarks/image_loading.py --turns 9 -o results/image_loading.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from turns import ratios

from badm.bench.data import image_files, path, photographs
from badm.bench.files import CACHE_VARIABLE
from badm.bench.tasks.image_classification import ImageClassification

FILES = {
    "deepweeds": lambda: photographs.deepweeds(path("deepweeds")).first_of_each(250).files,
    "flowers": lambda: photographs.flowers(path("tf-flowers")).files,
}
SETS = ("cifar10", "cmaterdb", *FILES)


def seconds(work: Callable[..., object], *arguments: object) -> float:
    began = time.process_time()
    work(*arguments)
    return time.process_time() - began


def measure(images: str, turns: int) -> dict[str, Any]:
    """Measure one task at cpu scale."""
    task = ImageClassification(images, "cpu")
    side, row = task.network.side, {}
    files: Sequence[Path] = ()
    if images in FILES:
        files = FILES[images]()
        with TemporaryDirectory() as folder:
            os.environ[CACHE_VARIABLE] = folder
            decoding = seconds(image_files.read_all, files, side, side)
            mapping = seconds(image_files.read_all, files, side, side)
            splits = task.data()
        row["decode_all_seconds"] = round(decoding, 3)
        row["map_all_seconds"] = round(mapping, 4)
    else:
        splits = task.data()
    torch.manual_seed(0)
    model = task.model(splits)
    optimizer = torch.optim.Adam(model.parameters())
    order = torch.randperm(len(splits.train))

    def decode(rows: Sequence[int]) -> None:
        for row in rows if files else ():
            image_files.read(files[row], side, side)

    def step(batch: object) -> None:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()

    picking, steps, again = [], [], []
    for turn in range(turns + 1):
        indices = order.roll(-turn * task.batch_size)[: task.batch_size]
        batch = task.batch(splits.train, indices)
        times = [
            seconds(task.batch, splits.train, indices),
            seconds(step, batch),
            seconds(decode, splits.train.rows[indices].tolist()),
        ]
        if turn:  # the first is a warm-up
            for kept, value in zip((picking, steps, again), times, strict=True):
                kept.append(value)
    if files:
        row["decode_all_in_steps"] = round(decoding / statistics.median(steps), 1)
        row["decode_batch_over_step"] = ratios(again, steps)
    return {
        "task": task.name,
        "images": len(splits.train.pixels),
        "side": side,
        "batch_size": task.batch_size,
        "steps_of_a_run": task.steps,
        "turns": turns,
        "step_ms": round(1e3 * statistics.median(steps), 1),
        "batch_over_step": ratios(picking, steps),
        **row,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--turns", type=int, default=21, help="turns to measure (default: %(default)s)"
    )
    parser.add_argument("--only", choices=SETS, help="measure one dataset only")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of torch (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    for images in [arguments.only] if arguments.only else SETS:
        row = measure(images, arguments.turns)
        rows.append(row)
        picked, decoded = row["batch_over_step"], row.get("decode_batch_over_step")
        line = f"{row['task']:18} a batch picked: {picked['ratio']:.4f} × a step"
        if decoded:
            line += (
                f"; decoded again: {decoded['ratio']:.2f} × a step; all decoded once: "
                f"{row['decode_all_in_steps']:.0f} steps of {row['steps_of_a_run']}"
            )
        print(line, flush=True)
    if arguments.output:
        report = {
            "torch": torch.__version__,
            "pillow": version("pillow"),
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "time": "CPU seconds of one process",
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
