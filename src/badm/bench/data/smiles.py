"""SMILES, molecules as text, parsed to graphs with RDKit (extra ``badm[graph]``)."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from badm.bench.data.molecules import Molecules, atom_features, bond_kind, graph
from badm.bench.data.sizes import shown

# RDKit follows a chain by recursion: at 20,000 atoms the stack overflows and the process dies. The
# longest SMILES of BBBP has 400 characters and 17 nested branches.
LONGEST = 2_000
DEEPEST = 200


class MissingRDKit(ImportError):
    """RDKit is not installed; the message says how to install it."""


class NotAMolecule(ValueError):
    """RDKit cannot parse a SMILES."""


@dataclass(frozen=True)
class ParsedSmiles:
    """A molecule, and the step of RDKit's sanitization that failed and was skipped.

    ``canonical`` is RDKit's own SMILES, which is the same for the same molecule.
    """

    molecule: Molecules
    canonical: str
    left_out: str | None


def read_smiles(smiles: str, label: float = 0.0) -> ParsedSmiles:
    """Parse and sanitize a SMILES; if a step of that fails, try again without it.

    >>> ethanol = read_smiles("CCO").molecule
    >>> len(ethanol.atoms), len(ethanol.kinds)
    (3, 7)
    >>> read_smiles("OCC").canonical
    'CCO'
    """
    if len(smiles) > LONGEST:
        raise NotAMolecule(f"{shown(smiles)} has more than {LONGEST:,} letters")
    if _nesting(smiles) > DEEPEST:
        raise NotAMolecule(f"{shown(smiles)} has {DEEPEST} or more nested branches")
    chem = _rdkit()
    try:
        return _read(chem, smiles, label)
    except NotAMolecule:
        raise
    # RDKit raises its own errors, those of Boost and any C++ exception.
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotAMolecule(f"{shown(smiles)} fails in RDKit: {why[:300]}") from error


def _read(chem: Any, smiles: str, label: float) -> ParsedSmiles:
    steps = chem.SanitizeFlags
    parsed = chem.MolFromSmiles(smiles, sanitize=False)
    if parsed is None or not parsed.GetNumAtoms():
        raise NotAMolecule(f"{shown(smiles)} is not a SMILES of at least one atom")
    failed = chem.SanitizeMol(parsed, catchErrors=True)
    if failed != steps.SANITIZE_NONE:
        again = chem.SanitizeMol(parsed, steps.SANITIZE_ALL ^ failed, catchErrors=True)
        if again != steps.SANITIZE_NONE:
            raise NotAMolecule(f"{shown(smiles)} fails {_name(failed)} and then {_name(again)}")
    chem.AssignStereochemistry(parsed, cleanIt=True, force=True)
    left_out = None if failed == steps.SANITIZE_NONE else _name(failed)
    return ParsedSmiles(_graph(parsed, label), chem.MolToSmiles(parsed), left_out)


def _graph(parsed: Any, label: float) -> Molecules:
    atoms = [
        atom_features(
            atom.GetSymbol(),
            atom.GetTotalValence(),
            atom.GetTotalNumHs(),
            atom.GetHybridization().name.lower(),
        )
        for atom in parsed.GetAtoms()
    ]
    bonds = [
        (
            bond.GetBeginAtomIdx(),
            bond.GetEndAtomIdx(),
            bond_kind(bond.GetBondType().name.lower(), bond.GetIsConjugated()),
        )
        for bond in parsed.GetBonds()
    ]
    return graph(atoms, bonds, label)


def _nesting(smiles: str) -> int:
    """
    >>> _nesting("CC(C(C)C)(C)C")
    2
    """
    return max(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in smiles), default=0)


def _name(step: Any) -> str:
    return str(step.name).removeprefix("SANITIZE_").lower()


def _rdkit() -> Any:
    try:
        chem = importlib.import_module("rdkit.Chem")
        logger = importlib.import_module("rdkit.RDLogger")
    except ModuleNotFoundError as error:
        raise MissingRDKit(
            'SMILES are read with RDKit, which is not installed: pip install "badm[graph]"'
        ) from error
    logger.DisableLog("rdApp.*")  # failures are reported here, with the name of the molecule
    return chem
