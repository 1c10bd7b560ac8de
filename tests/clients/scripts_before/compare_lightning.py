"""Digits with a module of Lightning."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

STEPS = 200


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, number):
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def test_step(self, batch, number):
        self.log("test_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def loaders():
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    parts = random_split(data, [1000, 400, 397], torch.Generator().manual_seed(0))
    return [DataLoader(part, 50, shuffle=i == 0) for i, part in enumerate(parts)]


def train():
    """A network of two layers on scikit-learn's digits."""
    lightning.seed_everything(0)
    training, validation, test = loaders()
    model = Digits()
    trainer = lightning.Trainer(
        max_steps=STEPS,
        val_check_interval=20,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(model, training, validation)
    trainer.test(model, test)


if __name__ == "__main__":
    train()
