"""Molecules as graphs: features of atoms and bonds, and batches of molecules as one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# In the order of the public example, which sorts them.
SYMBOLS = ("B", "Br", "C", "Ca", "Cl", "F", "H", "I", "N", "Na", "O", "P", "S")
VALENCES = tuple(range(7))
HYDROGENS = tuple(range(5))
HYBRIDISATIONS = ("s", "sp", "sp2", "sp3")
BONDS = ("aromatic", "double", "single", "triple")

ATOM_WIDTH = len(SYMBOLS) + len(VALENCES) + len(HYDROGENS) + len(HYBRIDISATIONS)
BOND_WIDTH = len(BONDS) + 2 + 1
SELF_LOOP = 2 * (
    len(BONDS) + 1
)  # index of the last kind, after four types and unknown, each conjugated or not


def atom_features(symbol: str, valence: int, hydrogens: int, hybridisation: str) -> list[float]:
    """Encode an atom as 29 features, one-hot in four groups; unknown values are all zeros.

    >>> features = atom_features("C", 4, 3, "sp3")
    >>> [place for place, value in enumerate(features) if value]
    [2, 17, 23, 28]
    >>> sum(atom_features("Xe", 8, 0, "sp3d"))
    1.0
    """
    groups: tuple[tuple[Sequence[str | int], str | int], ...] = (
        (SYMBOLS, symbol),
        (VALENCES, valence),
        (HYDROGENS, hydrogens),
        (HYBRIDISATIONS, hybridisation),
    )
    return [float(value == known) for allowed, value in groups for known in allowed]


def bond_kind(name: str, conjugated: bool) -> int:
    """Return the index of a kind of bond: a row of :func:`bond_features`.

    >>> bond_features()[bond_kind("double", conjugated=True)].tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    """
    number = BONDS.index(name) if name in BONDS else len(BONDS)
    return 2 * number + conjugated


def bond_features() -> Tensor:
    """Return the 7 features of every kind of bond: type, conjugated (no, yes), self-loop.

    There are so few kinds that what depends on a bond's features is computed once per kind.

    >>> bond_features()[SELF_LOOP].tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    table = torch.zeros(SELF_LOOP + 1, BOND_WIDTH)
    for kind in range(SELF_LOOP):
        number, conjugated = divmod(kind, 2)
        if number < len(BONDS):
            table[kind, number] = 1
        table[kind, len(BONDS) + conjugated] = 1
    table[SELF_LOOP, -1] = 1
    return table


@dataclass(frozen=True)
class Molecules:
    """Any number of molecules, merged into one disconnected graph.

    The bonds of an atom are a self-loop and one for each neighbour: messages go from ``senders`` to
    ``receivers``, both rows of ``atoms``, through a bond of ``kinds``.
    """

    atoms: Tensor  # (atoms, 29)
    receivers: Tensor  # (bonds,)
    senders: Tensor  # (bonds,)
    kinds: Tensor  # (bonds,)
    atom_counts: Tensor  # (molecules,)
    bond_counts: Tensor  # (molecules,)
    labels: Tensor  # (molecules,): 0.0 or 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, indices: Tensor) -> Molecules:
        """Select molecules, in that order.

        >>> carbon = atom_features("C", 4, 3, "sp3")
        >>> single = bond_kind("single", conjugated=False)
        >>> methane, ethane = graph([carbon], []), graph([carbon, carbon], [(0, 1, single)])
        >>> three = merge([methane, ethane]).pick(torch.tensor([1, 0, 1]))
        >>> three.atom_counts.tolist(), three.receivers.tolist()
        ([2, 1, 2], [0, 1, 0, 1, 2, 3, 4, 3, 4])
        """
        atom_counts, bond_counts = self.atom_counts[indices], self.bond_counts[indices]
        old, new = starts(self.atom_counts)[indices], starts(atom_counts)
        atoms = ranges(old, atom_counts)
        bonds = ranges(starts(self.bond_counts)[indices], bond_counts)
        moved = (new - old).repeat_interleave(bond_counts)
        return Molecules(
            self.atoms[atoms],
            self.receivers[bonds] + moved,
            self.senders[bonds] + moved,
            self.kinds[bonds],
            atom_counts,
            bond_counts,
            self.labels[indices],
        )

    def divide(self, parts: int) -> list[Molecules]:
        """Split into parts whose sizes differ by at most one molecule, keeping the order."""
        numbers = torch.arange(len(self), device=self.labels.device)
        return [self.pick(indices) for indices in numbers.tensor_split(parts)]


def graph(
    atoms: Sequence[Sequence[float]], bonds: Sequence[tuple[int, int, int]], label: float = 0.0
) -> Molecules:
    """Make a molecule from the features of its atoms and its bonds (atom, atom, kind)."""
    if not atoms:
        raise ValueError("a molecule must have at least one atom")
    loops = [(atom, atom, SELF_LOOP) for atom in range(len(atoms))]
    entries = (
        loops + [(a, b, kind) for a, b, kind in bonds] + [(b, a, kind) for a, b, kind in bonds]
    )
    receivers, senders, kinds = torch.tensor(entries).unbind(1)
    return Molecules(
        torch.tensor(atoms),
        receivers,
        senders,
        kinds,
        torch.tensor([len(atoms)]),
        torch.tensor([len(entries)]),
        torch.tensor([label]),
    )


def merge(molecules: Sequence[Molecules]) -> Molecules:
    """Merge molecules into one graph."""
    shifts = starts(torch.tensor([len(one.atoms) for one in molecules])).tolist()
    pairs = list(zip(molecules, shifts, strict=True))
    return Molecules(
        torch.cat([one.atoms for one in molecules]),
        torch.cat([one.receivers + shift for one, shift in pairs]),
        torch.cat([one.senders + shift for one, shift in pairs]),
        torch.cat([one.kinds for one in molecules]),
        torch.cat([one.atom_counts for one in molecules]),
        torch.cat([one.bond_counts for one in molecules]),
        torch.cat([one.labels for one in molecules]),
    )


def starts(counts: Tensor) -> Tensor:
    """Return where each of consecutive ranges of these lengths starts."""
    return counts.cumsum(0) - counts


def ranges(firsts: Tensor, counts: Tensor) -> Tensor:
    """Concatenate the ranges that start at ``first`` and have ``counts`` numbers.

    >>> ranges(torch.tensor([5, 20]), torch.tensor([3, 2])).tolist()
    [5, 6, 7, 20, 21]
    """
    numbers = torch.arange(int(counts.sum()), device=counts.device)
    return numbers + (firsts - starts(counts)).repeat_interleave(counts)
