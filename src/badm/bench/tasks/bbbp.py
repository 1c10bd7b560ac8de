"""``bbbp``: whether molecules pass the blood-brain barrier, by a message-passing network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from badm.bench.data import bbbp, path
from badm.bench.data.molecules import Molecules
from badm.bench.data.synthetic_molecules import synthetic_molecules
from badm.bench.models.molecule_network import MoleculeNetwork
from badm.bench.paper import Paper
from badm.bench.task import Scale, Score, Splits, Task
from badm.bench.tasks.data_identity import dataset_identity
from badm.bench.tasks.scores.prediction import predict

CLASS_WEIGHTS = (2.0, 0.5)  # of labels 0 and 1; label 1 is three times as frequent


class Bbbp(Task):
    """Binary classification of molecules, scored by the area under the ROC curve.

    Also reported: accuracy, which the paper shows, and the loss without class weights.
    """

    name = "bbbp"
    dataset_name = "bbbp"
    description = "2,050 molecules, message passing and attention, mean over atoms"
    score = Score("roc_auc")
    batch_size = 32
    sub_batch_size = 8
    target = 0.88  # Adam at the settings of the example takes about ten epochs
    order = "fixed"  # the example passes its training set unshuffled
    paper = Paper(
        lr=5e-4,
        rho=1000,
        sigma=1000,
        note="The paper has curves only and states no settings: the batch sizes and ρ + σ = 2,000 "
        "are assumed, as is its equal division; the learning rate is the public example's",
    )
    padded_mean = False

    def __init__(self, scale: Scale = "cpu") -> None:
        super().__init__(scale)
        # 45 steps make an epoch. The paper's scale has the 40 epochs of the example, and like it
        # evaluates at their ends: in a fixed order, metrics swing with the position in the epoch.
        self.steps = {"smoke": 30, "cpu": 675, "paper": 1800}[scale]
        self.evaluate_every = 10 if scale == "smoke" else 45

    def data(self) -> Splits:
        if self.scale == "smoke":
            return Splits(
                train=synthetic_molecules(96, seed=0),
                validation=synthetic_molecules(48, seed=1),
                test=synthetic_molecules(48, seed=2),
                synthetic=True,
            )
        file = path(self.dataset_name) / bbbp.FILE
        found = _read(file, dataset_identity(self.dataset_name))
        # The example draws its splits with numpy's legacy generator, seeded with 42.
        order = torch.from_numpy(np.random.RandomState(42).permutation(found.count))
        marks = [int(share * found.count) for share in (0.7, 0.8, 0.99)]
        first, more, held_out, rest = order.tensor_split(marks)
        told = (
            f"The public example trains on {len(first) + len(more):,} molecules, validates on "
            f"{len(held_out)} and tests on {len(rest)}. Here its {len(held_out)} are the test "
            f"split; the first {len(first):,} train, the other {len(more)} and its {len(rest)} "
            "validate"
        )
        rows = {"train": first, "validation": torch.cat([more, rest]), "test": held_out}
        train, validation, test = (found.of_rows(those) for those in rows.values())
        for name, split in zip(rows, (train, validation, test), strict=True):
            if not 0 < split.labels.mean() < 1:
                raise ValueError(f"{file}: the {name} split of {len(split)} must have both labels")
        twice = (
            f"{found.repeats(rows['test'], first)} molecules of the test split are in the training "
            "split too, written the same way or another"
        )
        return Splits(train, validation, test, notes=(told, twice, *found.notes))

    def model(self, splits: Splits) -> nn.Module:
        return MoleculeNetwork(self.padded_mean)

    def loss(self, model: nn.Module, batch: Molecules) -> Tensor:
        negative, positive = CLASS_WEIGHTS
        weights = torch.where(batch.labels == 1, positive, negative)
        # As in Keras, the mean is over samples and not over weights.
        return binary_cross_entropy_with_logits(model(batch), batch.labels, weights)

    def evaluate(self, model: nn.Module, split: Molecules) -> Mapping[str, float]:
        from sklearn.metrics import roc_auc_score

        batches = torch.split(torch.arange(len(split)), self.batch_size)
        logits = predict(model, map(split.pick, batches))
        if not logits.isfinite().all():
            return {"roc_auc": math.nan, "accuracy": math.nan, "loss": math.nan}
        return {
            "roc_auc": float(roc_auc_score(split.labels.numpy(), logits.numpy())),
            "accuracy": ((logits > 0) == (split.labels == 1)).double().mean().item(),
            "loss": binary_cross_entropy_with_logits(logits, split.labels).item(),
        }

    def samples(self, split: Molecules) -> int:
        return len(split)

    def batch(self, split: Molecules, indices: Tensor) -> Molecules:
        return split.pick(indices)

    def split_batch(self, batch: Molecules, sub_batches: int) -> list[Molecules]:
        return batch.divide(sub_batches)

    def size(self, batch: Molecules) -> float:
        return len(batch)


class BbbpPadded(Bbbp):
    """As in the public example, the mean over atoms includes the padding of the batch.

    The prediction for a molecule then depends on the largest molecule of its batch, and a batch
    differs from its sub-batches.
    """

    name = "bbbp-padded"
    description = "2,050 molecules, message passing and attention, mean over atoms and padding"
    padded_mean = True


@lru_cache(maxsize=1)
def _read(file: Path, identity: str) -> bbbp.Bbbp:
    """Read the file, once per content; warn of what RDKit cannot parse as it is."""
    found = bbbp.read(file)
    for note in found.notes:
        warnings.warn(f"{file}: {note}", stacklevel=2)
    return found
