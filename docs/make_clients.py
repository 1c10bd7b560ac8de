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

What BADM was tried with. Each of them trains, saves, is ended by SIGKILL and resumes; the table says whether the
weights at the end are those of a run that nothing interrupted. Where they are not, AdamW stands beside it.
`make clients` runs all of it again. Made by `docs/make_clients.py` from `results/clients.json`.

"""
NOT_INSTALLED = "not tried: could not be installed"


def page() -> str:
    """Return the page as the results have it now."""
    return HEAD + "\n".join([*_clients(), "", *_state(), "", *_compile(), "", *_inside(), ""])


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


def _state() -> Iterator[str]:
    yield "A Trainer of Hugging Face that makes the groups itself knows no embedding and no output layer. To have those of"
    yield "`badm.parameter_groups`, pass `optimizers=(badm.BADM(model), None)`, or let a subclass make the optimizer:"
    yield ""
    yield "```python"
    yield "class BadmTrainer(transformers.Trainer):"
    yield "    def create_optimizer(self, model=None):"
    yield "        if self.optimizer is None:"
    yield "            decay = self.args.weight_decay"
    yield "            self.optimizer = badm.BADM(self.model, lr=self.args.learning_rate, weight_decay=decay)"
    yield "        return self.optimizer"
    yield "```"
    yield ""
    yield "State dicts go into safetensors by `tensors, text = badm.state_to_tensors(optimizer.state_dict())` and"
    yield "`save_file(tensors, file, text)`, and back by `badm.state_from_tensors`."


def _compile() -> Iterator[str]:
    report = _read("compile_graphs")
    yield "## torch.compile"
    yield ""
    yield f"What `torch.compile(optimizer.step)` makes of a fresh optimizer of {report['parameters']} parameters: the graphs of"
    yield "the first step, its breaks besides the one that torch has in every optimizer's step, and the graphs that"
    yield f"{report['steps'] - 1} more steps add while the learning rate changes at every step."
    yield ""
    yield "| optimizer | graphs | breaks | more with a float lr | more with a tensor lr |"
    yield "|---|---|---|---|---|"
    for name, row in report["optimizers"].items():
        first = row["float"]
        more = [row[kind]["recompiles"] for kind in ("float", "tensor")]
        yield f"| {' | '.join(map(str, [name, first['graphs'], first['breaks'], *more]))} |"
    yield ""
    yield "The kronecker metrics choose the matrices whose bases are due in Python, between graphs."


def _inside() -> Iterator[str]:
    report = _read("inside")
    yield "## Matrices inside of a parameter"
    yield ""
    yield "Some layers keep several matrices in one parameter. `badm.parameter_groups` reads them as a stack: experts, the"
    yield "groups of a convolution, query, key and value, gate and up, the gates of an LSTM or GRU; depthwise kernels are"
    yield "vectors. `badm.explain` shows how each is read, `split=False` keeps what shares its inputs whole, and"
    yield '`overrides={"*.qkv.weight": {"blocks": 3}}` says it by name: `blocks` cuts the axes of a parameter in order,'
    yield "`(1, 3)` the second one. A checkpoint from before continues as it was read then."
    yield ""
    yield f"Measured on one small model each, {report['seeds']} seeds: validation loss at the better of the learning rates"
    yield f"{' and '.join(f'{lr:g}' for lr in report['rates'])}, and its difference to one matrix; below 0 is better."
    yield ""
    yield "| parameter | read as | loss | difference | of each seed |"
    yield "|---|---|---|---|---|"
    for name, by_metric in report["cases"].items():
        for reading, row in by_metric["spectral"].items():
            cells = [name, reading, f"{row['mean']:.4f}", "", ""]
            if "difference" in row:
                cells[3] = f"{row['difference']:+.4f}"
                cells[4] = ", ".join(f"{each:+.4f}" for each in row["differences"])
            yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
