"""The clients of the compatibility table, and what became of each: ``results/clients.json``.

python -m tests.clients.clients -o results/clients.json
python -m tests.clients.clients --only skorch
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.clients.harness import ADAMW, METRICS, Client, outcome, versions

HUGGING_FACE = ("transformers", "accelerate")
ROUNDING = 1e-5  # float32, summed in another order
EPOCHS = (
    "saved at the end of an epoch: of one that had begun, Lightning takes the first batches again, "
    "with AdamW too"
)

CLIENTS = (
    Client("torch.compile of the training step", "with_torch:with_compile"),
    Client("AMP with GradScaler", "with_torch:with_grad_scaler"),
    Client("swa_utils: AveragedModel, SWALR", "with_torch:with_averages"),
    Client("ZeroRedundancyOptimizer", "with_torch:with_zero", ranks=(2, 2)),
    Client("FSDP2 and DCP", "with_torch:with_dcp", ranks=(2, 2)),
    Client(
        "FSDP2 and DCP, 2 ranks and then 1",
        "with_torch:with_dcp",
        ranks=(2, 1),
        near=ROUNDING,
        note="equal up to the rounding of another number of ranks",
    ),
    Client("Trainer(optimizers=...)", "with_hugging_face:with_optimizers", HUGGING_FACE),
    Client(
        "Trainer with its own create_optimizer", "with_hugging_face:with_subclass", HUGGING_FACE
    ),
    Client(
        "Trainer(optimizer_cls_and_kwargs=...)",
        "with_hugging_face:with_class_and_options",
        HUGGING_FACE,
        note="the Trainer makes the groups: no embedding or output layer is known",
    ),
    Client("Accelerate", "with_hugging_face:with_accelerate", ("accelerate",), (2, 2)),
    Client("PEFT, LoRA", "with_hugging_face:with_peft", ("peft", "transformers")),
    Client("Lightning", "with_lightning:with_trainer", ("lightning",), note=EPOCHS),
    Client("Lightning, DDP", "with_lightning:with_trainer", ("lightning",), (2, 2), note=EPOCHS),
    Client("Fabric", "with_lightning:with_fabric", ("lightning",)),
    Client("Fabric, DDP", "with_lightning:with_fabric", ("lightning",), (2, 2)),
    Client(
        "skorch",
        "with_others:with_skorch",
        ("skorch",),
        note="skorch makes one group of all parameters",
    ),
    Client(
        "timm's create_optimizer_v2",
        "with_others:with_timm",
        ("timm", "torchvision"),
        note="after `default_registry.register(OptimInfo('badm', BADM, ...))`; own groups",
    ),
    Client("safetensors", "with_others:with_safetensors", ("safetensors",)),
    Client(
        "DeepSpeed ZeRO-1",
        "with_others:with_deepspeed",
        ("deepspeed",),
        note="flattens all parameters into vectors, so that matrices get the diagonal metric",
        launched=True,
    ),
)


def installed(client: Client) -> bool:
    return all(find_spec(name) for name in client.packages)


def row(client: Client, metrics: Sequence[str]) -> dict[str, Any]:
    """Return what the table says of a client; where BADM fails, with AdamW beside it."""
    if not installed(client):
        return {"client": client.name, "note": client.note, "missing": list(client.packages)}
    outcomes = {metric: outcome(client, metric) for metric in metrics}
    if not all(holds(client, found) for found in outcomes.values()):
        outcomes[ADAMW] = outcome(client, ADAMW)
    return {
        "client": client.name,
        "versions": versions(client),
        "ranks": list(client.ranks),
        "near": client.near,
        "note": client.note,
        "outcomes": outcomes,
    }


def holds(client: Client, found: dict[str, Any]) -> bool:
    """Return whether a killed run ended with the weights of an unbroken one."""
    return found.get("difference", float("inf")) <= client.near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--metrics", default=",".join(METRICS), help="default: %(default)s")
    parser.add_argument("--missing", action="store_true", help="only those the file lacks")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = _rows(options.output)
    for client in CLIENTS:
        if options.only in client.name and not (options.missing and client.name in rows):
            rows[client.name] = row(client, options.metrics.split(","))
            print(json.dumps(rows[client.name]), flush=True)
            if options.output:
                ordered = [rows[one.name] for one in CLIENTS if one.name in rows]
                report = {"python": platform.python_version(), "clients": ordered}
                options.output.write_text(json.dumps(report, indent=1) + "\n")


def _rows(file: Path | None) -> dict[str, Any]:
    """Return what an earlier run found, which this one adds to."""
    if file is None or not file.exists():
        return {}
    return {found["client"]: found for found in json.loads(file.read_text())["clients"]}


if __name__ == "__main__":
    main()
