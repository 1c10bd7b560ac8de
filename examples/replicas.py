"""Train replicas that meet every 20 steps: your own training loop under torchrun.

    torchrun --nproc-per-node 4 examples/replicas.py

On two machines: see docs/replicas.md.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import badm

badm.init_process_group("gloo")  # survives restarts by torchrun; "nccl" on GPUs
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = x.float() / 16
train, test = TensorDataset(x[:1500], y[:1500]), (x[1500:], y[1500:])

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = badm.BADM(badm.parameter_groups(model), lr=0.01)

sampler = badm.DistributedBatchSampler(len(train), batch_size=16)  # this rank's part of every epoch
loader = DataLoader(train, batch_sampler=sampler)
consensus = badm.Consensus(model.parameters(), optimizer, every=20)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()  # the replicas meet after every 20th step

consensus.meet()
if dist.get_rank() == 0:
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"{dist.get_world_size()} ranks, {consensus.meetings} meetings: {accuracy:.1%} correct")
dist.destroy_process_group()
