"""Callbacks that report for training loops of others: Hugging Face's and Lightning's.

Neither package is needed unless its callback is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badm.bench.training_function import Trial

# Of Hugging Face, about the evaluation and not the model.
NOT_METRICS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def trainer_callback(trial: Trial) -> Any:
    """Make a ``transformers.TrainerCallback`` that reports evaluations and training losses."""
    base = importlib.import_module("transformers").TrainerCallback

    def on_evaluate(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        metrics = without_prefix(given.get("metrics") or {}, "eval_")
        for name in NOT_METRICS:
            metrics.pop(name, None)
        if metrics:
            trial.report(state.global_step, **metrics)

    def on_log(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        logs = given.get("logs") or {}
        if "loss" in logs:
            trial.report(state.global_step, train_loss=logs["loss"])

    return _made(base, on_evaluate=on_evaluate, on_log=on_log)


def lightning_callback(trial: Trial) -> Any:
    """Make a Lightning callback that reports what a module logs as ``val_...``."""
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    package = importlib.import_module("pytorch_lightning" if older else "lightning.pytorch")

    def on_validation_end(self: Any, trainer: Any, module: Any) -> None:
        metrics = without_prefix(trainer.callback_metrics, "val_")
        if metrics and not trainer.sanity_checking:
            trial.report(trainer.global_step, **metrics)

    return _made(package.Callback, on_validation_end=on_validation_end)


def without_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Keep the metrics whose names have a prefix, without it.

    >>> without_prefix({"eval_accuracy": 0.5, "epoch": 1.0}, "eval_")
    {'accuracy': 0.5}
    """
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
    }


def _made(base: type, **hooks: Callable[..., None]) -> Any:
    return type("ReportToTrial", (base,), hooks)()
