"""Is a tumour malignant? 30 measurements of 569 cells, which ship inside scikit-learn."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import cross_entropy

from badm.bench import Score, Splits, Task


class BreastCancer(Task):
    name = "breast-cancer"
    description = "569 tumours, 30 measurements each, 30–32–32–2 perceptron"
    score = Score("accuracy", percent=True)
    batch_size = 32
    steps = 150
    evaluate_every = 5
    target = 0.97

    def data(self):
        measured, benign = load_breast_cancer(return_X_y=True)
        x = torch.tensor(measured, dtype=torch.float32)
        y = torch.tensor(benign, dtype=torch.long)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        train, validation, test = order.split((269, 150, 150))
        x = (x - x[train].mean(0)) / x[train].std(0)  # in the units of the training set
        return Splits(
            train=(x[train], y[train]),
            validation=(x[validation], y[validation]),
            test=(x[test], y[test]),
        )

    def model(self, splits):
        return nn.Sequential(
            nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
        )

    def loss(self, model, batch):
        x, y = batch
        return cross_entropy(model(x), y)

    def evaluate(self, model, split):
        x, y = split
        logits = model(x)
        return {
            "accuracy": (logits.argmax(1) == y).double().mean().item(),
            "loss": cross_entropy(logits, y).item(),
        }
