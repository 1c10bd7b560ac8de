"""Graph files are read without trust, and fetched as they were published."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, save_npz

from badm.bench import data
from badm.bench.data import graphs
from badm.bench.data.dataset import FetchFailed
from badm.bench.data.graph_facts import GRAPHS, check, differences, facts
from badm.bench.data.graphs import Graph, GraphError, read, synthetic, write

MADE = synthetic(nodes=40, features=12)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    return tmp_path


def changed(tmp_path: Path, **fields: Any) -> Path:
    """A graph file with other fields, or without those that are None."""
    file = tmp_path / "made.npz"
    write(file, MADE)
    with np.load(file) as sound:
        arrays = {**sound, **fields}
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


def equal(a: Graph, b: Graph) -> bool:
    return (
        (a.adjacency != b.adjacency).nnz == 0
        and (a.features != b.features).nnz == 0
        and torch.equal(a.labels, b.labels)
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "made.npz", MADE)
    again = read(tmp_path / "made.npz")
    assert equal(again, MADE)
    assert again.class_names == MADE.class_names
    assert again.features.dtype == np.float32


def at(array: Any, place: int, value: Any) -> Any:
    array = array.copy()
    array[place] = value
    return array


COLUMNS, POINTERS = MADE.adjacency.indices, MADE.adjacency.indptr
WORDS, VALUES = MADE.features.indices, MADE.features.data
LABELS = MADE.labels.numpy()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adj_indices": at(COLUMNS, 5, 40)}, r"adj_indices has column 40 in row \d+, outside of"),
        ({"adj_indices": at(COLUMNS, 0, -1)}, "adj_indices has column -1 in row 0, outside of 0"),
        ({"adj_indices": COLUMNS[:-1]}, r"adj_indices has \d+ entries, adj_indptr"),
        ({"adj_indices": COLUMNS.astype(float)}, "adj_indices must be a row of whole numbers"),
        ({"adj_indices": np.zeros_like(COLUMNS)}, "adj_indices must be ascending within a row"),
        ({"adj_indptr": at(POINTERS, 3, 10**6)}, "adj_indptr must ascend from 0 in 40 steps"),
        ({"adj_shape": np.array([40, 39])}, r"outside of 0 to 38|adj_shape must be square"),
        ({"adj_shape": np.array([40])}, "adj_shape must be two sizes"),
        ({"attr_shape": np.array([40, 9])}, "attr_indices has column .* outside of 0 to 8"),
        ({"attr_shape": np.array([39, 12])}, "attr_indptr must ascend from 0 in 39 steps"),
        ({"attr_indices": at(WORDS, 0, 12)}, "attr_indices has column 12 in row 0"),
        ({"attr_data": at(VALUES, 7, np.nan)}, "attr_data has nan, which is not finite"),
        ({"attr_data": at(VALUES, 7, np.inf)}, "attr_data has inf, which is not finite"),
        ({"attr_data": VALUES[1:]}, r"attr_data must be \d+ numbers"),
        ({"attr_data": VALUES.astype(str)}, r"attr_data must be \d+ numbers, got <U"),
        ({"labels": None}, "has no field labels, only adj_"),
        ({"labels": LABELS[:-1]}, r"labels has the shape \(39,\) for 40 nodes"),
        ({"labels": LABELS.astype(float)}, "labels must be a row of whole numbers, got float64"),
        ({"labels": at(LABELS, 3, -1)}, "labels must be class numbers from 0"),
        ({"labels": at(LABELS, 3, 10**9)}, "labels must be class numbers from 0"),
        ({"class_names": np.array(["a", "b"])}, "class_names has 2 names for 4 classes"),
        ({"labels": np.array([{"evil": 1}] * 40, object)}, "labels cannot be read: Object arrays"),
        ({"class_names": np.array([None] * 4)}, "class_names cannot be read: Object arrays"),
    ],
)
def test_a_bad_field_is_named_with_its_file(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError, match=rf"made\.npz: .*{message}"):
        read(changed(tmp_path, **fields))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, part: float) -> None:
    write(tmp_path / "made.npz", MADE)
    content = (tmp_path / "made.npz").read_bytes()
    (tmp_path / "made.npz").write_bytes(content[: int(part * len(content))])
    with pytest.raises(GraphError, match=r"made\.npz is truncated or not an npz file"):
        read(tmp_path / "made.npz")


def test_a_file_whose_bytes_are_damaged_is_named_with_the_field(tmp_path: Path) -> None:
    write(tmp_path / "made.npz", MADE)
    content = bytearray((tmp_path / "made.npz").read_bytes())
    content[60:90] = b"\0" * 30
    (tmp_path / "made.npz").write_bytes(content)
    with pytest.raises(GraphError, match=r"made\.npz: \w+ cannot be read"):
        read(tmp_path / "made.npz")


def test_a_file_that_states_more_than_a_gigabyte_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 1000)
    with pytest.raises(GraphError, match=r"made\.npz: states [\d,]+ bytes, more than 1,000"):
        read(changed(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"none\.npz is missing"):
        read(tmp_path / "none.npz")


def test_a_sound_graph_of_another_name_is_refused(root: Path) -> None:
    (root / "graphs").mkdir()
    write(root / "graphs" / "cora.npz", MADE)
    with pytest.raises(GraphError, match=r"cora\.npz: adj_shape has 40 nodes, not the 2,708 known"):
        graphs.load("cora")
    fields = {problem.message.split()[0] for problem in data.verify(data.find("cora"))}
    assert fields == {
        *("adj_shape", "adj_indices", "adj_indptr", "attr_shape", "attr_indices", "labels")
    }


def test_a_broken_file_is_a_problem_and_no_crash(root: Path) -> None:
    (root / "graphs").mkdir()
    (root / "graphs" / "cora.npz").write_bytes(b"no graph")
    (problem,) = data.verify(data.find("cora"))
    assert problem.kind == "corrupt"
    assert str(problem).startswith("graphs/cora.npz: is truncated or not an npz file")


def test_the_synthetic_graph_can_be_learned_from_words_and_from_links() -> None:
    made = synthetic()
    same = made.labels[:, None] == made.labels
    links = torch.from_numpy(made.adjacency.toarray()) > 0
    assert same[links].float().mean() > 0.7
    x = torch.from_numpy(made.features.toarray())
    means = torch.stack([x[made.labels == c].mean(0) for c in range(4)])
    assert (torch.cdist(x, means).argmin(1) == made.labels).float().mean() > 0.8
    assert equal(made, synthetic())
    assert not equal(made, synthetic(seed=1))


class Geometric:
    """PyTorch Geometric, as far as it is used: addresses, and a download that gives a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, bytes] = {}
        base = "https://host/npz"
        modules = {
            "torch_geometric": {},
            "torch_geometric.data": {"download_url": self.download_url},
            "torch_geometric.datasets": {
                "AttributedGraphDataset": SimpleNamespace(
                    url="https://drive/{}", datasets={"cora": "abc", "citeseer": "def"}
                ),
                "CitationFull": SimpleNamespace(url="https://full/{}.npz"),
                "Coauthor": SimpleNamespace(url=f"{base}/"),
                "Amazon": SimpleNamespace(url=base),
            },
        }
        for name, contents in modules.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)

    def download_url(self, url: str, folder: str, *, log: bool, filename: str) -> str:
        if url not in self.files:
            raise OSError(f"<urlopen error no {url}>")
        (Path(folder) / filename).write_bytes(self.files[url])
        return str(Path(folder) / filename)


@pytest.fixture
def geometric(monkeypatch: pytest.MonkeyPatch) -> Geometric:
    return Geometric(monkeypatch)


def attributed(graph: Graph, *, turned: bool = False) -> bytes:
    """The zip file of the Attributed Graph collection."""
    packed, features = io.BytesIO(), io.BytesIO()
    save_npz(features, csr_array(graph.features))
    ends = graph.adjacency.nonzero()
    edges = zip(*(reversed(ends) if turned else ends), strict=True)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("cora.attr/attrs.npz", features.getvalue())
        archive.writestr("cora.attr/edgelist.txt", "".join(f"{a} {b}\n" for a, b in edges))
        lines = (f"{node}\t{c + 1}\n" for node, c in enumerate(graph.labels.tolist()))
        archive.writestr("cora.attr/labels.txt", "".join(lines))
    return packed.getvalue()


@pytest.mark.parametrize("turned", [False, True])
def test_fetched_citations_point_the_known_way(
    root: Path, geometric: Geometric, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    monkeypatch.setitem(GRAPHS, "cora", facts(MADE))
    geometric.files["https://drive/abc"] = attributed(MADE, turned=turned)
    assert data.fetch(data.find("cora")) == "fetched"
    assert equal(graphs.load("cora"), MADE)
    assert data.verify(data.find("cora")) == []
    assert data.fetch(data.find("cora")) == "there"


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("pubmed", "https://full/pubmed.npz"),
        ("cs", "https://host/npz/ms_academic_cs.npz"),
        ("physics", "https://host/npz/ms_academic_phy.npz"),
        ("computers", "https://host/npz/amazon_electronics_computers.npz"),
    ],
)
def test_fetched_links_go_both_ways_without_loops_and_counts_stay_counts(
    root: Path, geometric: Geometric, monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    words = csr_array(np.array([[3, 0], [0, 1], [2, 0]], np.float64))
    links = csr_array(np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0]], np.float32))
    fields = {"labels": np.array([0, 1, 0], np.int32), "node_names": np.array([None] * 3)}
    for prefix, matrix in (("adj", links), ("attr", words)):
        for part in ("data", "indices", "indptr", "shape"):
            fields[f"{prefix}_{part}"] = np.array(getattr(matrix, part))
    file = io.BytesIO()
    np.savez(file, **fields)
    geometric.files[url] = file.getvalue()
    expected = Graph(
        csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32)),
        words.astype(np.float32),
        torch.tensor([0, 1, 0]),
    )
    monkeypatch.setitem(GRAPHS, name, facts(expected))
    assert data.fetch(data.find(name)) == "fetched"
    assert equal(graphs.load(name), expected)


def test_a_source_that_is_another_graph_now_is_not_kept(root: Path, geometric: Geometric) -> None:
    geometric.files["https://drive/abc"] = attributed(MADE)
    with pytest.raises(FetchFailed, match="adj_shape has 40 nodes, not the 2,708 known"):
        data.fetch(data.find("cora"))
    assert not list(root.rglob("*.npz"))


def test_a_download_that_fails_says_why_and_leaves_nothing(
    root: Path, geometric: Geometric
) -> None:
    with pytest.raises(FetchFailed, match=r"cora could not be downloaded .* no https://drive/abc"):
        data.fetch(data.find("cora"))
    assert list(root.iterdir()) == []


def test_without_the_library_fetch_names_the_extra(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(data.MissingLibrary, match=r'torch_geometric.*"badm\[graph\]"'):
        data.fetch(data.find("physics"))


@pytest.mark.data
@pytest.mark.parametrize("name", GRAPHS)
def test_the_real_graphs_are_those_known(badm_data: Path, name: str) -> None:
    assert list(differences(graphs.load(name), GRAPHS[name])) == []
    assert check(name, badm_data / "graphs") == []
