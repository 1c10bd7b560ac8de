"""Digits with an ordinary loop: badm compare examples/compare_loop.py"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import badm.bench

STEPS = 400


@badm.bench.training(score="accuracy", percent=True, budget=STEPS, target=0.93)
def train(trial):
    """A network of two layers on scikit-learn's digits."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    training, validation, test = torch.arange(len(y)).split([1000, 400, 397])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = trial.optimizer(model)
    scheduler = trial.scheduler(optimizer)

    def accuracy(split):
        with torch.no_grad():
            return (model(x[split]).argmax(1) == y[split]).float().mean().item()

    trial.test(lambda: {"accuracy": accuracy(test)})
    for step in range(1, STEPS + 1):
        batch = training[torch.randint(len(training), (64,))]
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            trial.report(step, accuracy=accuracy(validation), train_loss=loss.item())
