"""Every task takes a training step on the meta device: nothing waits for a device there.

A meta tensor has no values: whatever would read one raises. Whatever would combine one with a
tensor on the CPU is caught here, as a GPU would refuse it or wait for a copy.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from badm import BADM
from badm.bench import tasks
from badm.bench.engine.task_data import load_splits, model_of, move_splits, players_of
from badm.bench.method import trainable_parameters
from badm.bench.task import to_device

COPIES = {"aten::_to_copy", "aten::copy_"}


class Reason(NamedTuple):
    """Why a task must read values from the device, and the error that shows where."""

    why: str
    function: str
    error: str


# By pattern of names. All of these wait for the device once a step; none needs the CPU's values.
READS_VALUES = {
    "node-*-dnn": Reason(
        "it picks the rows of a sparse matrix of scipy, by the numbers of the nodes",
        "forward",
        "Cannot copy out of meta tensor",
    ),
    "bbbp*": Reason(
        "it multiplies bonds of a kind at once, and how many there are decides the shapes",
        "forward",
        "aten::bincount",
    ),
    "mlm-pretrain*": Reason(
        "it computes logits at hidden words alone, and how many there are decides the shapes",
        "forward",
        r"torch\.nonzero",
    ),
}


class NoMixing(TorchDispatchMode):
    """Refuses operations on tensors of which some are on the meta device and some on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        # A number on the CPU may be combined with anything.
        devices = {x.device.type for x in tensors if x.ndim}
        if len(devices) > 1 and func._schema.name not in COPIES:
            raise RuntimeError(f"{func} mixes {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


def reason_of(name: str) -> Reason | None:
    return next((READS_VALUES[p] for p in READS_VALUES if fnmatch(name, p)), None)


def train_step(name: str) -> tuple[nn.Module, list[BADM]]:
    """What the engine does in a step, but for reading the loss."""
    task = tasks.find(name, "smoke").task
    splits = load_splits(task)
    model = model_of(task, splits).to("meta").train()
    # From the splits where the engine has them: those that are plain nests have been moved.
    indices = torch.arange(min(task.batch_size, task.samples(splits.train)))
    batch = to_device(task.batch(move_splits(splits, "meta").train, indices), "meta")
    optimizers = []
    for player in players_of(task, model):
        parameters = list(trainable_parameters(player.module))
        optimizers.append(BADM(parameters, lr=1e-3))
        with NoMixing():
            loss = player.loss(model, batch)
            torch.autograd.backward(loss, inputs=parameters)
            optimizers[-1].step()
    with NoMixing(), torch.no_grad():
        task.after_step(model)
    return model, optimizers


@pytest.mark.parametrize("name", [name for name in tasks.TASKS if not reason_of(name)])
def test_a_training_step_reads_no_value_from_the_device(name: str) -> None:
    model, optimizers = train_step(name)
    for tensor in [*model.parameters(), *model.buffers()]:
        assert tensor.device.type == "meta"
    for optimizer in optimizers:
        held = [x for x in tree_leaves(dict(optimizer.state)) if isinstance(x, Tensor)]
        assert held
        assert all(x.device.type == "meta" for x in held)


@pytest.mark.parametrize("name", [name for name in tasks.TASKS if reason_of(name)])
def test_a_task_that_must_read_values_still_has_its_reason(name: str) -> None:
    """If this fails, a task has become better: take it out of the table."""
    reason = reason_of(name)
    assert reason is not None
    with pytest.raises(NotImplementedError, match=reason.error) as raised:
        train_step(name)
    ours = [entry for entry in raised.traceback if "badm/bench/models" in str(entry.path)]
    assert ours[-1].name == reason.function, reason.why


def test_every_pattern_of_the_table_names_a_task() -> None:
    for pattern in READS_VALUES:
        assert any(fnmatch(name, pattern) for name in tasks.TASKS), pattern


def test_a_tensor_on_the_cpu_is_noticed() -> None:
    x = torch.zeros(3, device="meta")
    with NoMixing():
        assert (x * torch.tensor(2.0)).device.type == "meta"
        with pytest.raises(RuntimeError, match=r"index.* mixes cpu and meta"):
            x[torch.tensor([0, 2])]
