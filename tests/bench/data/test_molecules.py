"""Molecules: read as the public example does, merged without loss, and never lost in silence."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from badm.bench import data
from badm.bench.data import bbbp
from badm.bench.data.molecules import (
    ATOM_WIDTH,
    BOND_WIDTH,
    SELF_LOOP,
    SYMBOLS,
    VALENCES,
    Molecules,
    atom_features,
    bond_features,
    bond_kind,
    graph,
    merge,
)
from badm.bench.data.smiles import MissingRDKit, NotAMolecule, read_smiles
from badm.bench.data.synthetic_molecules import LARGEST, SMALLEST, VALENCE, synthetic_molecules

RDKIT = "needs RDKit: pip install -c constraints.txt 'rdkit>=2024.3'"
HEADER = "num,name,p_np,smiles\n"


@pytest.fixture
def rdkit() -> None:
    pytest.importorskip("rdkit", reason=RDKIT)


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "BBBP.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def fields(molecules: Molecules) -> dict[str, torch.Tensor]:
    return dict(vars(molecules))


def assert_same(a: Molecules, b: Molecules) -> None:
    for name, tensor in fields(a).items():
        assert torch.equal(tensor, fields(b)[name]), name


def singly(molecules: Molecules) -> list[Molecules]:
    return [molecules.pick(torch.tensor([i])) for i in range(len(molecules))]


# Features


def test_there_are_29_features_of_an_atom_and_7_of_a_bond() -> None:
    assert (ATOM_WIDTH, BOND_WIDTH) == (29, 7)
    assert len(atom_features("C", 4, 0, "sp3")) == 29
    assert bond_features().shape == (SELF_LOOP + 1, 7)


def test_every_kind_of_bond_has_features_of_its_own() -> None:
    table = bond_features()
    assert len(table.unique(dim=0)) == len(table)
    assert table[bond_kind("aromatic", conjugated=True)].tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert table[bond_kind("dative", conjugated=False)].tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_a_molecule_has_at_least_one_atom() -> None:
    with pytest.raises(ValueError, match="at least one atom"):
        graph([], [])


# Merging


@pytest.mark.slow
@given(st.lists(st.integers(0, 7), min_size=1, max_size=12))
def test_to_pick_is_to_merge_those_that_are_picked(indices: list[int]) -> None:
    molecules = synthetic_molecules(8, seed=3)
    apart = singly(molecules)
    picked = molecules.pick(torch.tensor(indices))
    assert_same(picked, merge([apart[i] for i in indices]))


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_parts_of_a_batch_make_up_the_batch(parts: int) -> None:
    molecules = synthetic_molecules(7, seed=1)
    divided = molecules.divide(parts)
    assert [len(part) for part in divided] == [
        len(part) for part in torch.arange(7).tensor_split(parts)
    ]
    assert_same(merge(divided), molecules)


# Made-up molecules


def test_made_up_molecules_keep_to_their_valences() -> None:
    orders = {bond_kind("single", False): 1, bond_kind("double", False): 2}
    for molecule in singly(synthetic_molecules(60, seed=0)):
        assert 1 < len(molecule.atoms) <= LARGEST
        for atom, features in enumerate(molecule.atoms):
            symbol = SYMBOLS[features[:13].argmax()]
            hydrogens = int(features[20:25].argmax())
            bonded = sum(
                orders[kind]
                for receiver, kind in zip(
                    molecule.receivers.tolist(), molecule.kinds.tolist(), strict=True
                )
                if receiver == atom and kind != SELF_LOOP
            )
            assert bonded + hydrogens == VALENCE[symbol] == VALENCES[features[13:20].argmax()]
            assert features.sum() == 4


def test_made_up_molecules_have_every_entry_both_ways_and_one_self_loop_for_each_atom() -> None:
    molecules = synthetic_molecules(30, seed=2)
    entries = list(
        zip(
            molecules.receivers.tolist(),
            molecules.senders.tolist(),
            molecules.kinds.tolist(),
            strict=True,
        )
    )
    assert len(set(entries)) == len(entries)
    assert {(b, a, kind) for a, b, kind in entries} == set(entries)
    assert [a for a, b, kind in sorted(entries) if kind == SELF_LOOP] == list(
        range(len(molecules.atoms))
    )
    assert all((a == b) == (kind == SELF_LOOP) for a, b, kind in entries)


def test_made_up_molecules_depend_on_their_seed_alone_and_have_both_labels() -> None:
    assert_same(synthetic_molecules(20, seed=5), synthetic_molecules(20, seed=5))
    made = synthetic_molecules(200, seed=5)
    assert not torch.equal(made.labels, synthetic_molecules(200, seed=6).labels)
    assert 0.55 < made.labels.mean() < 0.9
    assert (made.atom_counts >= SMALLEST).float().mean() > 0.9
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got 0"):
        synthetic_molecules(0, seed=0)


# SMILES


@pytest.mark.usefixtures("rdkit")
def test_aspirin_has_the_shapes_that_the_public_example_prints() -> None:
    read = read_smiles("CC(=O)Oc1ccccc1C(O)=O", label=1.0)
    aspirin = read.molecule
    assert read.left_out is None
    assert aspirin.atoms.shape == (13, 29)
    assert aspirin.kinds.shape == (39,)
    assert aspirin.labels.tolist() == [1.0]
    first = [atom_features("C", 4, 3, "sp3"), atom_features("C", 4, 0, "sp2")]
    assert aspirin.atoms[:2].tolist() == first
    names = {
        bond_kind("single", False): 1,  # from the methyl group
        bond_kind("single", True): 4,
        bond_kind("double", True): 2,
        bond_kind("aromatic", True): 6,
    }
    counts = aspirin.kinds.bincount(minlength=SELF_LOOP + 1).tolist()
    expected = {**{kind: 2 * count for kind, count in names.items()}, SELF_LOOP: 13}
    assert {kind: count for kind, count in enumerate(counts) if count} == expected


@pytest.mark.usefixtures("rdkit")
def test_what_fails_a_check_is_read_without_it() -> None:
    read = read_smiles(r"Cc1nc(sc1)\[NH]=C(\N)N")  # a nitrogen of valence 4
    assert read.left_out == "properties"
    assert len(read.molecule.atoms) == 10


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize("smiles", ["C(", "not a molecule", "", "C1CC"])
def test_what_is_no_smiles_is_refused_with_its_text(smiles: str) -> None:
    with pytest.raises(NotAMolecule) as refused:
        read_smiles(smiles)
    assert repr(smiles) in str(refused.value)


def test_without_rdkit_the_command_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(MissingRDKit, match=r'pip install "badm\[graph\]"'):
        read_smiles("CCO")


# The file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (HEADER, "has a header and no molecules"),
        ("num,name,p_np\n1,a,1\n", "line 1: no column 'smiles' among num, name, p_np"),
        ("smiles,label\nC,1\n", "line 1: no column 'p_np' among smiles, label"),
        ("smiles,p_np,smiles\nC,1,C\n", "line 1: more than one column 'smiles'"),
        (HEADER + "1,a,1,C\n2,b,2,C\n", "line 3, field p_np: must be 0 or 1, got '2'"),
        (HEADER + "1,a,yes,C\n", "line 2, field p_np: must be 0 or 1, got 'yes'"),
        (HEADER + "1,a,,C\n", "line 2, field p_np: must be 0 or 1, got ''"),
        (HEADER + "1,a,1, \n", "line 2, field smiles: is empty"),
        (HEADER + "1,a,1,C\n2,b,1\n", "line 3: 3 fields for 4 columns"),
        (HEADER + "1,a,1,C,C\n", "line 2: 5 fields for 4 columns"),
        (HEADER + '1,"two\nlines",1,C\n2,b,x,C\n', "line 4, field p_np"),
        (HEADER + '1,"never closed,1,C\n', "line 2: "),
        (HEADER.encode() + b"1,caf\xe9,1,C\n", "line 2: must be UTF-8, got the byte 0xe9"),
        (HEADER.encode("utf-16"), "line 1: must be UTF-8, got the byte 0xff"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_line_and_field(
    csv_file: Callable[[str | bytes], Path], text: str | bytes, words: str
) -> None:
    path = csv_file(text)
    with pytest.raises(bbbp.CsvError) as error:
        bbbp.read_rows(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_a_file_may_have_a_byte_order_mark_other_columns_and_empty_lines(
    csv_file: Callable[[str | bytes], Path],
) -> None:
    path = csv_file(b"\xef\xbb\xbfsmiles,more,p_np\r\nCCO,x,1\r\n\r\nC,y,0\r\n")
    assert bbbp.read_rows(path) == [bbbp.Row(2, "", "CCO", 1.0), bbbp.Row(4, "", "C", 0.0)]


@pytest.mark.usefixtures("rdkit")
def test_what_cannot_be_read_is_counted_and_named_and_the_other_rows_keep_their_place(
    csv_file: Callable[[str | bytes], Path],
) -> None:
    path = csv_file(
        HEADER + "1,wine,1,CCO\n2,typo,0,C(C\n3,gas,0,C\n4,odd,1,C[NH]=C(N)N\n5,,1,xyz\n"
    )
    read = bbbp.read(path)
    assert read.count == 5
    assert read.rows.tolist() == [0, 2, 3]
    assert read.notes == (
        "RDKit cannot read 2 of 5 SMILES, which are left out: typo (line 3), line 6",
        "1 of 5 SMILES fail RDKit's check of properties and are read without it, as in the public "
        "example: odd (line 5)",
    )
    chosen = read.of_rows(torch.tensor([3, 1, 0]))
    assert chosen.atom_counts.tolist() == [5, 3]
    assert chosen.labels.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("rdkit")
def test_a_molecule_is_known_again_however_it_is_written(
    csv_file: Callable[[str | bytes], Path],
) -> None:
    read = bbbp.read(csv_file(HEADER + "1,a,1,CCO\n2,b,0,xyz\n3,c,1,OCC\n4,d,0,C\n5,e,0,CC\n"))
    assert read.repeats(torch.tensor([2, 3, 1]), torch.tensor([0, 4, 1])) == 1
    assert read.repeats(torch.tensor([3]), torch.tensor([0, 4])) == 0


@pytest.mark.usefixtures("rdkit")
def test_a_file_without_any_molecule_is_refused(
    csv_file: Callable[[str | bytes], Path],
) -> None:
    path = csv_file(HEADER + "1,a,1,xyz\n")
    with pytest.raises(bbbp.CsvError, match="field smiles: RDKit can parse none of 1"):
        bbbp.read(path)


def test_of_many_names_the_first_twenty_are_listed() -> None:
    rows = [bbbp.Row(line, f"m{line}", "C", 1.0) for line in range(2, 25)]
    told = bbbp._listed(rows)
    assert "m21 (line 21)" in told
    assert told.endswith(" and 3 more")


# Fetching


@pytest.fixture
def geometric(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch Geometric, but what it downloads is ``.source``, or raises ``.error``."""
    fake = SimpleNamespace(source=None, error=None, asked=[])

    def download_url(url: str, folder: str, log: bool = True) -> None:
        fake.asked.append((url, log, socket.getdefaulttimeout()))
        if fake.error:
            raise fake.error
        shutil.copy(fake.source, Path(folder) / url.rpartition("/")[2])

    for name, content in {
        "torch_geometric": {},
        "torch_geometric.data": {"download_url": download_url},
        "torch_geometric.datasets": {
            "MoleculeNet": SimpleNamespace(url="https://deepchem.example/{}")
        },
    }.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def test_a_file_that_is_not_that_of_moleculenet_is_not_kept(
    tmp_path: Path, geometric: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    monkeypatch.setenv("BADM_DATA", str(root))
    geometric.source = tmp_path / "other.csv"
    for text, words in (
        (HEADER + "1,a,1,C\n", "does not have the checksum"),
        ("<html>", "no column 'smiles'"),
    ):
        geometric.source.write_text(text)
        with pytest.raises(data.FetchFailed, match=words):
            data.fetch(data.find("bbbp"))
        assert list(root.iterdir()) == []
    (url, log, timeout), _ = geometric.asked
    assert (url, log, timeout) == ("https://deepchem.example/BBBP.csv", False, bbbp.SECONDS)
    assert socket.getdefaulttimeout() is None


def test_a_server_out_of_reach_is_named(
    tmp_path: Path, geometric: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    geometric.error = OSError("Name or service not known")
    with pytest.raises(data.FetchFailed, match=r"deepchem.example/BBBP.csv .*Name or service"):
        data.fetch(data.find("bbbp"))
    assert list(tmp_path.iterdir()) == []


def test_without_pytorch_geometric_the_command_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(data.MissingLibrary, match=r'pip install "badm\[graph\]"'):
        data.fetch(data.find("bbbp"))


# Real data


@pytest.mark.data
def test_the_real_file_is_fetched_and_verified(
    badm_data: Path,
    tmp_path: Path,
    geometric: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    geometric.source = badm_data / "bbbp" / "BBBP.csv"
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    told: list[tuple[str, int, int]] = []
    wanted = data.find("bbbp")
    assert data.fetch(wanted, lambda *report: told.append(report)) == "fetched"
    assert told == [("files", 1, 1)]
    assert data.verify(wanted) == []
    assert data.fetch(wanted) == "there"


@pytest.mark.data
@pytest.mark.usefixtures("rdkit")
def test_the_real_molecules_are_all_there(badm_data: Path) -> None:
    read = bbbp.read(badm_data / "bbbp" / "BBBP.csv")
    molecules = read.molecules
    assert (len(molecules), read.count) == (2050, 2050)
    assert molecules.labels.sum() == 1567
    (note,) = read.notes
    assert note.startswith("11 of 2,050 SMILES fail RDKit's check of properties")
    assert "ICI17148 (line 393)" in note
    assert int(molecules.atom_counts.max()) == 132
    assert len(molecules.kinds.unique()) <= 9
    # Nothing here is unknown to the features.
    assert (molecules.atoms.sum(1) == 4).all()
    loops = molecules.kinds == SELF_LOOP
    assert torch.equal(molecules.receivers[loops].sort().values, torch.arange(len(molecules.atoms)))
