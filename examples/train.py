"""An ordinary training loop with BADM: one line differs from Adam's.

    python examples/train.py

To find out which optimizer is best for a task, run ``badm compare digits``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import badm

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
order = torch.randperm(len(y))
train, test = order[:1400], order[1400:]

model = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
)
# optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = badm.BADM(model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

for epoch in range(1, 11):
    for batch in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    scheduler.step()
    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
    print(f"epoch {epoch:2d}: training loss {loss:.4f}, test accuracy {accuracy:.1%}")
