"""Synthetic molecules for tests: branched chains with valid valences."""

from __future__ import annotations

import random

from badm.bench.data.molecules import Molecules, atom_features, bond_kind, graph, merge

VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1, "Cl": 1, "S": 2}
POLAR = {"N", "O", "S"}
SMALLEST, LARGEST = 4, 16  # atoms


def synthetic_molecules(count: int, seed: int) -> Molecules:
    """Generate chains with a label to learn: 1 if few atoms are polar, as in drugs for the brain.

    >>> made = synthetic_molecules(40, seed=0)
    >>> len(made), made.labels.unique().tolist()
    (40, [0.0, 1.0])
    """
    if count < 1:
        raise ValueError(f"count must be a whole number of at least 1, got {count}")
    draw = random.Random(seed)
    return merge([_molecule(draw) for _ in range(count)])


def _molecule(draw: random.Random) -> Molecules:
    polar_share = draw.choice((0.15, 0.15, 0.15, 0.6))
    symbols, free = ["C"], [VALENCE["C"]]
    bonds: list[tuple[int, int, int]] = []
    doubled = set()
    for atom in range(1, draw.randint(SMALLEST, LARGEST)):
        polar = draw.random() < polar_share
        symbol = draw.choice(("N", "O", "O", "S") if polar else ("C", "C", "C", "C", "F", "Cl"))
        # One bond stays free for the chain to go on, unless the new atom has another.
        open_places = [other for other, places in enumerate(free) if places]
        if VALENCE[symbol] == 1 and sum(free) == 1:
            symbol = "C"
        neighbour = draw.choice(open_places)
        double = min(free[neighbour], VALENCE[symbol]) > 1 and draw.random() < 0.2
        order = 1 + double
        symbols.append(symbol)
        free[neighbour] -= order
        free.append(VALENCE[symbol] - order)
        bonds.append((neighbour, atom, bond_kind("double" if double else "single", False)))
        if double:
            doubled |= {neighbour, atom}
        if not any(free):
            break
    atoms = [
        atom_features(symbol, VALENCE[symbol], hydrogens, "sp2" if atom in doubled else "sp3")
        for atom, (symbol, hydrogens) in enumerate(zip(symbols, free, strict=True))
    ]
    polar_atoms = sum(symbol in POLAR for symbol in symbols)
    return graph(atoms, bonds, float(polar_atoms <= 0.35 * len(symbols)))
