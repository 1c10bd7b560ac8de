"""Measure an optimizer's step on an embedding of 30,000 words, relative to a gradient.

The model is the one of ``mlm-pretrain`` at the paper's sizes: an embedding of 30,000×128, a small
encoder, an output layer as large as the embedding, 32 reviews of 256 words. For each method this
measures the processor time of a step on the embedding alone and on the whole model, relative to
the time of a gradient (forward and backward). Methods take turns; a turn is ten steps of each
method, a whole round of refreshes, and the reported value is the median over the turns of the ratio
to the gradient of that turn. Absolute times depend on the machine.

    python benchmarks/embedding.py -o results/embedding.json
    python benchmarks/embedding.py --turns 3 --only badm,adam
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from turns import ratios

from badm import BADM, parameter_groups
from badm.bench import methods
from badm.bench.method import OptimizerTrainer, TrainingSetup
from badm.bench.models.masked_language_model import Encoder, MaskedLanguageModel

WORDS, LENGTH, BATCH, HIDDEN = 30_000, 256, 32, 0.1  # the last: fraction of masked words
STEPS_OF_A_TURN = 10
NAMES = ("badm-printed", "badm-diagonal", "badm", "badm-kronecker", "adam", "muon", "soap")
# Without badm.parameter_groups, which gives an embedding the diagonal metric.
UNTOLD = ("spectral", "kronecker")

Step = Callable[[], object]


def network() -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(Encoder(WORDS, LENGTH))


def gradient_of(model: MaskedLanguageModel) -> Step:
    """Return the gradient of a batch with Zipf-distributed words."""
    torch.manual_seed(1)
    frequencies = 1 / torch.arange(1, WORDS + 1)
    words = torch.multinomial(frequencies, BATCH * LENGTH, replacement=True).view(BATCH, LENGTH)
    places = torch.rand(BATCH, LENGTH) < HIDDEN

    def gradient() -> None:
        model.zero_grad()
        cross_entropy(model(words, places), words[places], reduction="sum").backward()

    return gradient


def step_of(name: str, module: nn.Module) -> Step:
    """Return the step of a method at its defaults, on existing gradients."""
    method = methods.find(name)
    trainer = method.build(TrainingSetup(module, STEPS_OF_A_TURN), method.setting({}))
    assert isinstance(trainer, OptimizerTrainer)
    return trainer.optimizer.step


def embedding_like(model: MaskedLanguageModel) -> nn.Embedding:
    """Copy the embedding and its gradient."""
    like = nn.Embedding(WORDS, model.encoder.width)
    with torch.no_grad():
        like.weight.copy_(model.encoder.embedding.weight)
    like.weight.grad = model.encoder.embedding.weight.grad
    return like


def model_like(model: MaskedLanguageModel) -> MaskedLanguageModel:
    like = network()
    for p, q in zip(like.parameters(), model.parameters(), strict=True):
        p.grad = q.grad
    return like


def seconds(work: Step, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def measure(names: Sequence[str], turns: int) -> dict[str, Any]:
    model = network()
    gradient = gradient_of(model)
    gradient()
    works: dict[tuple[str, str], Step] = {}
    for name in names:
        works[name, "embedding"] = step_of(name, embedding_like(model))
        works[name, "model"] = step_of(name, model_like(model))
    if tuple(names) == NAMES:
        for what, module in (("embedding", embedding_like(model)), ("model", model_like(model))):
            works["badm, fused", what] = BADM(parameter_groups(module), fused=True).step
        for metric in UNTOLD:
            untold = BADM(embedding_like(model).parameters(), metric=metric)
            works[f"badm.BADM(metric={metric!r})", "embedding"] = untold.step
    times: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    gradients = []
    for turn in range(turns + 1):
        gradients.append(seconds(gradient, 2))
        for key, work in works.items():
            times[key].append(seconds(work, STEPS_OF_A_TURN))
        print(f"turn {turn} of {turns}", flush=True)
    # The first turn creates the states.
    rows: dict[str, Any] = {}
    for (name, what), those in times.items():
        rows.setdefault(name, {})[what] = ratios(those[1:], gradients[1:])
    return {"gradient_ms": round(1e3 * statistics.median(gradients[1:]), 1), "steps": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--turns", type=int, default=5, help="turns to measure (default: %(default)s)"
    )
    parser.add_argument("--only", help="comma-separated names of methods")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (default: %(default)s)"
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = arguments.only.split(",") if arguments.only else NAMES
    found = measure(names, arguments.turns)
    for name, row in found["steps"].items():
        whole = f"; on the whole model {row['model']['ratio']:.3f}" if "model" in row else ""
        print(f"{name:32} on the embedding {row['embedding']['ratio']:.3f} × a gradient{whole}")
    if arguments.output:
        report = {
            "torch": torch.__version__,
            "pytorch_optimizer": version("pytorch_optimizer"),
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "time": "CPU seconds of one process",
            "words": WORDS,
            "width": 128,
            "batch": [BATCH, LENGTH],
            "turns": arguments.turns,
            "steps of a turn": STEPS_OF_A_TURN,
            **found,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
