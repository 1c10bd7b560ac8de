"""Write docs/clients.md: what BADM was tried with, torch.compile, and matrices inside of tensors.

python docs/make_clients.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("clients.md")
RESULTS = Path(__file__).parents[1] / "results"
HEAD = """# Other packages

What BADM was tried with. Each package trains, saves, is ended by SIGKILL and resumes; the table
says whether the weights at the end are those of a run that nothing interrupted. Where they are
not, AdamW stands beside it. `make clients` runs all of it again. Made by `docs/make_clients.py`
from `results/clients.json`.

"""
GROUPS = """A Trainer of Hugging Face that makes the groups itself knows no embedding and no
output layer. To have the groups of `badm.parameter_groups`, pass `optimizers=(badm.BADM(model),
None)`, or let a subclass make the optimizer:

```python
class BadmTrainer(transformers.Trainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            options = {"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay}
            self.optimizer = badm.BADM(self.model, **options)
        return self.optimizer
```

A state dict goes into safetensors by `tensors, text = badm.state_to_tensors(state_dict)` and
`save_file(tensors, file, text)`, and back by `badm.state_from_tensors(tensors, text)`.
"""
COMPILE = """## torch.compile

What `torch.compile(optimizer.step)` makes of a fresh optimizer of a small network: the graphs of
the first step, its breaks besides the one that torch has in every optimizer's step, and the
graphs that {more} more steps add while the learning rate changes at every step.

| optimizer | graphs | breaks | more with a float lr | more with a tensor lr |
|---|---|---|---|---|
"""
AFTER_COMPILE = """
The kronecker metrics renew their bases in Python, after the graph; the second step compiles again,
since the bases are there then.
"""
INSIDE = """## Matrices inside of a parameter

Some layers keep several matrices in one parameter. `badm.parameter_groups` reads as a stack those
that share neither inputs nor outputs: experts and the groups of a convolution. With `split=True`
it cuts what shares its inputs too: query, key and value, gate and up, the gates of an LSTM or GRU.
That is not the default, since it was no better on all of them, and depthwise kernels stay one
matrix, since they were worse as vectors. `badm.explain` shows how each is read, and
`overrides={{"*.qkv.weight": {{"blocks": 3}}}}` says it by name: `blocks` cuts the axes of a
parameter in order, `(1, 3)` the second one. A checkpoint from before continues as it was read then.

Measured on one small model each, {seeds} seeds: the validation loss at the better of the learning
rates {rates}, and its difference to one matrix; below 0 is better.

| parameter | read as | loss | difference | of each seed |
|---|---|---|---|---|
"""
NOT_INSTALLED = "not tried: not installed beside torch for CPUs"


def page() -> str:
    """Return the page as the results have it now."""
    compiled, inside = _read("compile_graphs"), _read("inside")
    more = compiled["steps"] - 1
    rates = " and ".join(f"{lr:g}" for lr in inside["rates"])
    return "\n".join(
        (
            HEAD + _lines(_clients()),
            GROUPS,
            COMPILE.format(more=more) + _lines(_compile(compiled)) + AFTER_COMPILE,
            INSIDE.format(seeds=inside["seeds"], rates=rates) + _lines(_inside(inside)),
        )
    )


def _lines(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _clients() -> Iterator[str]:
    yield "| client | versions | processes | resumes | to know |"
    yield "|---|---|---|---|---|"
    for row in _read("clients")["clients"]:
        if "missing" in row:
            cells = [row["client"], ", ".join(row["missing"]), "", NOT_INSTALLED, row["note"]]
        else:
            versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
            ranks = list(dict.fromkeys(row["ranks"]))
            processes = ", then ".join(map(str, ranks))
            cells = [row["client"], versions, processes, _outcome(row), row["note"]]
        yield f"| {' | '.join(cells)} |"


def _outcome(row: Mapping[str, Any]) -> str:
    said = []
    for name, found in row["outcomes"].items():
        if "error" in found:
            text = f"no: {found['error'].partition(chr(10))[0][:120]}"
        elif found["difference"] == 0:
            text = "bit for bit"
        elif found["difference"] <= row["near"]:
            text = f"within {found['difference']:.0e}"
        else:
            text = f"no: {found['difference']:.0e} apart"
        said.append(f"{name}: {text}")
    return "; ".join(said)


def _compile(report: Mapping[str, Any]) -> Iterator[str]:
    for name, row in report["optimizers"].items():
        first = row["float"]
        more = [row[kind]["recompiles"] for kind in ("float", "tensor")]
        yield f"| {' | '.join(map(str, [name, first['graphs'], first['breaks'], *more]))} |"


def _inside(report: Mapping[str, Any]) -> Iterator[str]:
    for name, by_metric in report["cases"].items():
        for reading, row in by_metric["spectral"].items():
            cells = [name, reading, f"{row['mean']:.4f}", "", ""]
            if "difference" in row:
                cells[3] = f"{row['difference']:+.4f}"
                cells[4] = ", ".join(f"{each:+.4f}" for each in row["differences"])
            yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
