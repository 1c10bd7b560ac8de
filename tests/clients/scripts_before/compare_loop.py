"""Digits with an ordinary loop."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 400


def train():
    """A network of two layers on scikit-learn's digits."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    training, validation, test = torch.arange(len(y)).split([1000, 400, 397])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)

    def accuracy(split):
        with torch.no_grad():
            return (model(x[split]).argmax(1) == y[split]).float().mean().item()

    for step in range(1, STEPS + 1):
        batch = training[torch.randint(len(training), (64,))]
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(step, loss.item(), accuracy(validation))
    print("test", accuracy(test))


if __name__ == "__main__":
    train()
