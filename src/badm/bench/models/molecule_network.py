"""A message-passing network over molecules, with the layers and the initialisation of Keras."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from badm.bench.data.molecules import (
    ATOM_WIDTH,
    BOND_WIDTH,
    Molecules,
    bond_features,
    ranges,
    starts,
)
from badm.bench.models.attention import SelfAttention
from badm.bench.models.keras_layers import Dense

WIDTH = 64  # of an atom's state
STEPS = 4
HEADS, KEY_WIDTH = 8, 64
HIDDEN = 512
EPSILON = 1e-3  # of LayerNorm, in Keras
GROUP = 8  # molecules whose attention is computed at once


class MoleculeNetwork(nn.Module):
    """One logit per molecule: messages along bonds, self-attention among atoms, a mean.

    The mean is over the atoms of a molecule or, with ``padded_mean``, over as many positions as the
    largest molecule of the batch has atoms, padding included. Then the logit of a molecule depends
    on the others of its batch.

    >>> from badm.bench.data.synthetic_molecules import synthetic_molecules
    >>> network = MoleculeNetwork()
    >>> network(synthetic_molecules(5, seed=0)).shape
    torch.Size([5])
    >>> sum(p.numel() for p in network.parameters())
    290561
    """

    def __init__(self, padded_mean: bool = False) -> None:
        super().__init__()
        self.messages = Messages()
        self.readout = Readout(padded_mean)
        self.hidden = Dense(WIDTH, HIDDEN)
        self.output = Dense(HIDDEN, 1)

    def forward(self, molecules: Molecules) -> Tensor:
        states = self.messages(molecules)
        pooled = self.readout(states, molecules.atom_counts)
        logits: Tensor = self.output(self.hidden(pooled).relu())
        return logits[:, 0]


class Messages(nn.Module):
    """Four rounds of messages from neighbours, each through its bond's matrix, and a GRU cell."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", bond_features(), persistent=False)
        self.edge = Dense(BOND_WIDTH, WIDTH * WIDTH)
        # Keras's cell has the same equations, with gates in the order z, r, h; torch's r, z, n.
        self.update = nn.GRUCell(WIDTH, WIDTH)
        nn.init.xavier_uniform_(self.update.weight_ih)
        nn.init.orthogonal_(self.update.weight_hh)
        nn.init.zeros_(self.update.bias_ih)
        nn.init.zeros_(self.update.bias_hh)

    def forward(self, molecules: Molecules) -> Tensor:
        # One matrix per kind of bond instead of one per bond: the same, and far less work.
        matrices = self.edge(self.table).view(-1, WIDTH, WIDTH)
        by_kind = molecules.kinds.argsort(stable=True)
        receivers, senders = molecules.receivers[by_kind], molecules.senders[by_kind]
        counts = molecules.kinds.bincount(minlength=len(matrices)).tolist()
        states = pad(molecules.atoms, (0, WIDTH - ATOM_WIDTH))
        for _ in range(STEPS):
            heard = zip(torch.split(states[senders], counts), matrices, strict=True)
            sent = torch.cat([linear(state, matrix) for state, matrix in heard])
            summed = torch.zeros_like(states).index_add(0, receivers, sent)
            states = self.update(summed, states)
        return states


class Readout(nn.Module):
    """A transformer layer over the atoms of each molecule, and their mean."""

    def __init__(self, padded_mean: bool) -> None:
        super().__init__()
        self.padded_mean = padded_mean
        self.attention = SelfAttention(WIDTH, HEADS, KEY_WIDTH)  # each head is as wide as the state
        self.first_norm = nn.LayerNorm(WIDTH, EPSILON)
        self.hidden = Dense(WIDTH, HIDDEN)
        self.project = Dense(HIDDEN, WIDTH)
        self.second_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, states: Tensor, atoms: Tensor) -> Tensor:
        """Read out each molecule; ``atoms`` has the number of states of each."""
        numbers = torch.arange(len(atoms), device=atoms.device)
        molecule = numbers.repeat_interleave(atoms)
        rows, shares = atoms, 1 / atoms[molecule]
        if self.padded_mean:
            # All positions of padding are equal: one row of zeros represents them.
            longest = int(atoms.max())
            rows = atoms + 1
            places = torch.arange(len(states), device=atoms.device) + molecule
            states = states.new_zeros(int(rows.sum()), WIDTH).index_copy(0, places, states)
            molecule = numbers.repeat_interleave(rows)
            shares = torch.full((len(states),), 1 / longest, device=atoms.device)
            shares[rows.cumsum(0) - 1] = (longest - atoms) / longest
        x = self.first_norm(states + _within(self.attention, states, rows, atoms))
        x = self.second_norm(x + self.project(self.hidden(x).relu()))
        pooled: Tensor = x.new_zeros(len(atoms), WIDTH)
        return pooled.index_add(0, molecule, shares[:, None] * x)


def _within(attention: SelfAttention, states: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """Attend inside each molecule: all its ``rows`` are queries, the first ``keys`` are keys."""
    # Molecules of similar size together, so that each group needs little padding.
    order = rows.argsort(stable=True)
    rows_of, keys_of = rows[order], keys[order]
    sorted_states = ranges(starts(rows)[order], rows_of)
    chosen = states[sorted_states]
    groups = torch.split(rows_of, GROUP)
    sizes = [int(group.sum()) for group in groups]
    asked, answers, values = (
        torch.split(layer(chosen), sizes)
        for layer in (attention.query, attention.key, attention.value)
    )
    mixed = map(
        partial(_mix, attention), asked, answers, values, groups, torch.split(keys_of, GROUP)
    )
    merged: Tensor = attention.merge(torch.cat(list(mixed)))
    return merged[sorted_states.argsort()]


def _mix(
    attention: SelfAttention, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, keys: Tensor
) -> Tensor:
    molecules, longest = len(rows), int(rows.max())
    places = ranges(longest * torch.arange(molecules, device=rows.device), rows)

    def padded(x: Tensor) -> Tensor:
        empty = x.new_zeros(molecules * longest, x.shape[1])
        return empty.index_copy(0, places, x).view(molecules, longest, -1)

    is_key = torch.arange(longest, device=keys.device) < keys[:, None]
    mixed = attention.mix(padded(query), padded(key), padded(value), is_key[:, None, None, :])
    return mixed.flatten(0, 1)[places]
