"""Fetching graphs with PyTorch Geometric's addresses and download (extra ``badm[graph]``).

Its processing is not used: it would unpickle Planetoid's files, make the features of Physics dense
and set all counts to one. Its Attributed Graph collection has Cora and Citeseer as LINQS
published them, with the direction of each citation; its Planetoid does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from badm.bench.data import npz
from badm.bench.data.archives import unpack
from badm.bench.data.dataset import ProgressCallback
from badm.bench.data.graph_facts import GRAPHS
from badm.bench.data.optional_imports import fetch_error, library

PARTS = ("data", "indices", "indptr", "shape")  # of a sparse matrix

if TYPE_CHECKING:
    from badm.bench.data.graphs import Graph


def fetch(name: str, folder: Path, report: ProgressCallback | None) -> None:
    """Write ``<name>.npz`` into a folder."""
    from badm.bench.data.graphs import write

    data = library("torch_geometric.data", "graph")
    sources = library("torch_geometric.datasets", "graph")
    with TemporaryDirectory(prefix=".graph-", dir=folder.parent) as temporary:
        try:
            graph = SOURCES[name](name, sources, data.download_url, Path(temporary))
        # The library raises errors of urllib and fsspec and its own.
        except Exception as error:
            raise fetch_error(name, "through PyTorch Geometric", error) from error
        write(folder / f"{name}.npz", graph)
    if report:
        report("graphs", 1, 1)


def _citations(name: str, sources: Any, download: Callable[..., str], folder: Path) -> Graph:
    """Read Cora and Citeseer: a zip file of features, citations and labels, numbered from 1."""
    import numpy as np
    import torch
    from scipy.sparse import csr_array, load_npz

    from badm.bench.data.graphs import Graph, ones

    source = sources.AttributedGraphDataset
    url = source.url.format(source.datasets[name])
    archive = download(url, str(folder), log=False, filename=f"{name}.zip")
    unpack(Path(archive), folder / "unpacked")
    (features_file,) = (folder / "unpacked").rglob("attrs.npz")
    features = csr_array(load_npz(features_file), dtype=np.float32)
    features.sum_duplicates()
    labels, edges = (
        np.array(
            [line.replace(",", " ").split() for line in file.read_text().splitlines()], np.int64
        )
        for file in map(features_file.with_name, ("labels.txt", "edgelist.txt"))
    )
    labels = labels[:, 1]  # the first column numbers the nodes, in order
    adjacency = ones(edges[:, 0], edges[:, 1], len(labels))
    # The collection does not say which end cites; the longest list of references shows it.
    if np.bincount(edges[:, 1]).max() == GRAPHS[name].longest_row:
        adjacency = adjacency.T.tocsr()
    return Graph(adjacency, features, torch.from_numpy(labels - labels.min()))


def _symmetric(name: str, sources: Any, download: Callable[..., str], folder: Path) -> Graph:
    """Read the others: one npz file, made symmetric and without self-loops."""
    import numpy as np
    import torch
    from scipy.sparse import csr_array

    from badm.bench.data.graphs import LARGEST, Graph, GraphError, ones

    urls = {
        "pubmed": sources.CitationFull.url.format("pubmed"),
        "cs": sources.Coauthor.url.rstrip("/") + "/ms_academic_cs.npz",
        "physics": sources.Coauthor.url.rstrip("/") + "/ms_academic_phy.npz",
        "computers": sources.Amazon.url.rstrip("/") + "/amazon_electronics_computers.npz",
    }
    file = download(urls[name], str(folder), log=False, filename="source.npz")
    names = [f"{prefix}_{part}" for prefix in ("adj", "attr") for part in PARTS]
    fields = npz.read(Path(file), [*names, "labels"], largest=LARGEST, error=GraphError)
    labels = fields["labels"].astype(np.int64)
    matrices = []
    for prefix in ("adj", "attr"):
        *parts, shape = (fields[f"{prefix}_{part}"] for part in PARTS)
        matrices.append(csr_array(tuple(parts), shape=tuple(shape)))
        matrices[-1].check_format(full_check=True)  # the code below trusts every index
    links, features = matrices[0].tocoo(), matrices[1].astype(np.float32)
    features.sum_duplicates()
    features.eliminate_zeros()
    far = links.row != links.col
    rows, columns = links.row[far], links.col[far]
    both = np.concatenate([rows, columns]), np.concatenate([columns, rows])
    return Graph(ones(*both, len(labels)), features, torch.from_numpy(labels))


SOURCES: dict[str, Callable[[str, Any, Callable[..., str], Path], Graph]] = {
    "cora": _citations,
    "citeseer": _citations,
    "pubmed": _symmetric,
    "cs": _symmetric,
    "physics": _symmetric,
    "computers": _symmetric,
}
