"""A device of torch that only pretends: its tensors are kept on the CPU, and never mix with others.

``python -m tests.helpers.pretend_device FILE METHOD TASK ...`` trains each task on the CPU, on this
device, and there once more with a stop and a resume, and writes the results to a JSON file. It
needs a process of its own: torch keeps a device that was registered.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from badm.bench import methods, tasks
from badm.bench.engine import options
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.training import Interrupted
from badm.bench.records.runs import Run, RunConfig, RunStore

NAME = "pretend"
STEPS, STOP_AT = 6, 3


class OnDevice(Tensor):
    """A tensor that says it is on the device. Its values are in ``inner``."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Lets ``device="pretend"`` make such tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the inner tensors; as a GPU would, it refuses to mix devices."""
    name = func._schema.name
    if name == "aten::copy_":
        inner(args[0]).copy_(inner(args[1]))
        return args[0]
    # Any tensor may be indexed by one on the CPU.
    checked = args[:1] if name == "aten::index" else args
    tensors = [x for x in tree_leaves((checked, kwargs)) if isinstance(x, Tensor)]
    here = [x for x in tensors if isinstance(x, OnDevice)]
    # A number on the CPU may be combined with anything.
    if here and any(x.ndim for x in tensors if not isinstance(x, OnDevice)):
        raise RuntimeError(f"{name} mixes {NAME} and cpu")
    device = kwargs.get("device")
    stays = bool(here) if device is None else torch.device(device).type == NAME
    plain = {**kwargs, **({} if device is None else {"device": torch.device("cpu")})}
    plain_args, plain_kwargs = tree_map(inner, (args, plain))
    out = func(*plain_args, **plain_kwargs)
    if not stays or name == "aten::_local_scalar_dense":
        return out
    out = tree_map(lambda x: OnDevice(x) if type(x) is Tensor else x, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if here else out


def inner(x: Any) -> Any:
    return x.inner if isinstance(x, OnDevice) else x


def plain_gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Of torch's own, which is one operation on devices and others on the CPU."""
    gates = zip(
        linear(x, cell.weight_ih, cell.bias_ih).chunk(3, 1),
        linear(h, cell.weight_hh, cell.bias_hh).chunk(3, 1),
        strict=True,
    )
    (r_x, r_h), (z_x, z_h), (n_x, n_h) = gates
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * n_h).tanh()
    return n + z * (h - n)


def save(content: Any, file: Any, *, original: Any = torch.save) -> None:
    original(tree_map(lambda x: {NAME: x.inner} if isinstance(x, OnDevice) else x, content), file)


def load(path: Any, *, original: Any = torch.load, **options: Any) -> Any:
    def restored(x: Any) -> Any:
        if isinstance(x, dict):
            return OnDevice(x[NAME]) if set(x) == {NAME} else {k: restored(v) for k, v in x.items()}
        return [restored(part) for part in x] if isinstance(x, list) else x

    return restored(original(path, **options))


@contextmanager
def pretending() -> Iterator[None]:
    with (
        patch.object(options, "DEVICES", (*options.DEVICES, NAME)),
        patch.object(options, "available_devices", lambda: (NAME, "cpu")),
        patch.object(torch.accelerator, "synchronize", lambda: None),
        patch.object(torch, "save", save),
        patch.object(torch, "load", load),
        Pretending(),
    ):
        yield


def numbers(done: Run) -> Any:
    """All of a run but its device, its seconds and its memory."""
    assert done.result is not None
    points = [{**asdict(point), "seconds": None} for point in done.points]
    return [points, {**asdict(done.result), "seconds": None, "peak_bytes": None}]


def train(name: str, method: str, device: str, *, stop: bool = False) -> Any:
    """How a task ends after the stages before it; with ``stop``, after a stop and a resume."""
    store, machine = RunStore(tempfile.mkdtemp()), Machine(device=device)
    found, chosen = tasks.find(name, "smoke"), methods.find(method)
    chain = [found]
    while chain[0].previous_stage is not None:
        chain.insert(0, tasks.find(chain[0].previous_stage, "smoke"))
    after: RunConfig | None = None
    for stage in chain:
        after = stage.config(chosen, chosen.setting({}), 0, steps=STEPS, after=after, device=device)
        seen = 0

        def on_step(step: int, loss: float) -> None:
            nonlocal seen
            seen = step

        options = RunOptions(keep_weights=True, on_step=on_step)
        if stop:
            stopping = replace(options, should_stop=lambda: seen >= STOP_AT)  # noqa: B023
            try:
                run(after, stage.task, chosen, store, stopping, machine)
            except Interrupted:
                assert store.checkpoint(after).exists()
        done = run(after, stage.task, chosen, store, options, machine)
    return numbers(done)


def main() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    output, method, *names = sys.argv[1:]
    torch.set_num_threads(1)
    ends = {}
    # Attention too is one operation on the CPU and others on devices. What these round differently
    # grows with every step, until all that can be compared is chance.
    with patch.object(nn.GRUCell, "forward", plain_gru), sdpa_kernel(SDPBackend.MATH):
        for name in names:
            on_cpu = train(name, method, "cpu")
            with pretending():
                ends[name] = [
                    on_cpu,
                    train(name, method, NAME),
                    train(name, method, NAME, stop=True),
                ]
    Path(output).write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
