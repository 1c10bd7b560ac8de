"""Digits with a module of Lightning: badm compare examples/compare_lightning.py"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import badm.bench

STEPS = 200


class Digits(lightning.LightningModule):
    def __init__(self, trial):
        super().__init__()
        self.trial = trial
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, number):
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def test_step(self, batch, number):
        self.log("test_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = self.trial.optimizer(self)
        scheduler = self.trial.scheduler(optimizer)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def loaders():
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    parts = random_split(data, [1000, 400, 397], torch.Generator().manual_seed(0))
    return [DataLoader(part, 50, shuffle=i == 0) for i, part in enumerate(parts)]


@badm.bench.training(score="accuracy", percent=True, budget=STEPS)
def train(trial):
    """A network of two layers on scikit-learn's digits."""
    training, validation, test = loaders()
    model = Digits(trial)
    trainer = lightning.Trainer(
        max_steps=trial.steps,
        val_check_interval=20,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator=trial.device,
        callbacks=[trial.lightning_callback()],
    )
    trial.test(lambda: trainer.test(model, test, verbose=False)[0])
    trainer.fit(model, training, validation)
