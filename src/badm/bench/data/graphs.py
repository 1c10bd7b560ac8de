"""Graphs with node features and labels: validated reading, writing, and a synthetic one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from badm.bench.data import npz
from badm.bench.data.availability import path
from badm.bench.data.graph_facts import GRAPHS, differences

LARGEST = 1 << 30  # bytes of all fields; a file that states more is refused
WIDEST = (
    1 << 20
)  # features: a header can state any number, and a model would allocate weights for it
FIELDS = (
    *("adj_indptr", "adj_indices", "adj_shape"),
    *("attr_indptr", "attr_indices", "attr_shape", "attr_data"),
    "labels",
)


class GraphError(ValueError):
    """A file is not a valid graph; the message names file and field."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with sparse features and a class each; rows of the adjacency cite columns."""

    adjacency: csr_array  # of ones
    features: csr_array
    labels: Tensor
    class_names: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def load(name: str) -> Graph:
    """Load one of the six graphs from the data folder.

    >>> load("cora").classes  # doctest: +SKIP
    7
    """
    file = path(name) / f"{name}.npz"
    graph = read(file)
    for difference in differences(graph, GRAPHS[name]):
        raise GraphError(f"{file}: {difference}")
    return graph


def read(file: Path) -> Graph:
    """Read a graph in the layout of ``badm data list --json``; nothing is unpickled.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "made.npz", synthetic())
    ...     read(Path(folder) / "made.npz").adjacency.shape
    (300, 300)
    """
    fields = _Fields(file)
    adjacency = fields.matrix("adj", values=False)
    nodes, columns = adjacency.shape
    if nodes != columns:
        raise fields.error("adj_shape", f"must be square, got {nodes} × {columns}")
    features = fields.matrix("attr", values=True)
    if features.shape[0] != nodes:
        raise fields.error("attr_shape", f"has {features.shape[0]} rows for {nodes} nodes")
    labels = fields.whole("labels")
    if labels.shape != (nodes,):
        raise fields.error("labels", f"has the shape {labels.shape} for {nodes} nodes")
    if nodes == 0 or labels.min() < 0 or labels.max() >= nodes:
        raise fields.error("labels", "must be class numbers from 0")
    names = fields.text("class_names")
    if names and len(names) != labels.max() + 1:
        raise fields.error("class_names", f"has {len(names)} names for {labels.max() + 1} classes")
    return Graph(adjacency, features, torch.from_numpy(labels.astype(np.int64)), names)


def write(file: Path, graph: Graph) -> None:
    """Write a graph in the layout that :func:`read` takes."""
    fields: dict[str, Any] = {"labels": graph.labels.numpy()}
    for prefix, matrix in (("adj", graph.adjacency), ("attr", graph.features)):
        fields[f"{prefix}_indptr"] = matrix.indptr.astype(np.int32)
        fields[f"{prefix}_indices"] = matrix.indices.astype(np.int32)
        fields[f"{prefix}_shape"] = np.array(matrix.shape)
    fields["attr_data"] = graph.features.data
    if graph.class_names:
        fields["class_names"] = np.array(graph.class_names)
    np.savez_compressed(file, **fields)


def synthetic(
    nodes: int = 300, features: int = 64, classes: int = 4, *, density: float = 0.2, seed: int = 0
) -> Graph:
    """Generate a citation graph that can be learned: papers of a class share words and citations.

    >>> graph = synthetic()
    >>> graph.adjacency.shape, graph.features.shape, graph.classes
    ((300, 300), (300, 64), 4)
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    own = np.arange(features) % classes == labels[:, None]
    words = rng.random((nodes, features)) < np.where(own, 3 * density, density)
    # Three citations each: of the same class most of the time, of any node otherwise.
    citing = np.repeat(np.arange(nodes), 3)
    alike = rng.integers(0, -(-nodes // classes), len(citing)) * classes + labels[citing]
    cited = np.where(rng.random(len(citing)) < 0.8, alike, rng.integers(0, nodes, len(citing)))
    kept = (cited < nodes) & (cited != citing)
    return Graph(
        adjacency=ones(citing[kept], cited[kept], nodes),
        features=csr_array(words.astype(np.float32)),
        labels=torch.from_numpy(labels),
        class_names=tuple(f"synthetic {c}" for c in range(classes)),
    )


def ones(rows: Any, columns: Any, nodes: int) -> csr_array:
    """Build the adjacency matrix of edges, with duplicates removed.

    >>> ones([0, 0, 1], [1, 1, 0], 2).toarray().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    matrix = coo_array((np.ones(len(rows), np.float32), (rows, columns)), (nodes, nodes)).tocsr()
    matrix.data[:] = 1  # duplicates have been summed
    matrix.sort_indices()
    return matrix


class _Fields:
    """The arrays of a file, each checked for what it must be."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.arrays = npz.read(
            file, FIELDS, optional=["class_names"], largest=LARGEST, error=GraphError
        )

    def error(self, field: str, what: str) -> GraphError:
        return GraphError(f"{self.file}: {field} {what}")

    def whole(self, field: str) -> Any:
        array = self.arrays[field]
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise self.error(
                field, f"must be a row of whole numbers, got {array.dtype} of shape {array.shape}"
            )
        return array

    def text(self, field: str) -> tuple[str, ...]:
        """Read a row of strings; empty if the file has none."""
        array = self.arrays.get(field, np.empty(0, str))
        if array.dtype.kind not in "US" or array.ndim != 1:
            raise self.error(
                field, f"must be a row of strings, got {array.dtype} of shape {array.shape}"
            )
        return tuple(map(str, array))

    def matrix(self, prefix: str, *, values: bool) -> csr_array:
        """Read a sparse matrix from its arrays, which scipy would not check."""
        indptr, indices = self.whole(f"{prefix}_indptr"), self.whole(f"{prefix}_indices")
        shape = self.whole(f"{prefix}_shape")
        if len(shape) != 2 or shape.min() < 0:
            raise self.error(f"{prefix}_shape", f"must be two sizes, got {shape.tolist()}")
        rows, columns = map(int, shape)
        if len(indptr) != rows + 1 or indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
            raise self.error(f"{prefix}_indptr", f"must ascend from 0 in {rows} steps, one per row")
        if columns > max(rows, WIDEST):
            raise self.error(f"{prefix}_shape", f"states {columns:,} columns, more than {WIDEST:,}")
        if indptr[-1] != len(indices):
            raise self.error(
                f"{prefix}_indices", f"has {len(indices)} entries, {prefix}_indptr {indptr[-1]}"
            )
        self._check_columns(f"{prefix}_indices", indptr, indices, columns)
        data = self._values(f"{prefix}_data", len(indices)) if values else np.ones(len(indices))
        parts = data.astype(np.float32), indices.astype(np.int32), indptr.astype(np.int32)
        return csr_array(parts, shape=(rows, columns))

    def _check_columns(self, field: str, indptr: Any, indices: Any, columns: int) -> None:
        outside = (indices < 0) | (indices >= columns)
        if outside.any():
            at = int(outside.argmax())
            row = int(np.searchsorted(indptr, at, side="right")) - 1
            raise self.error(
                field, f"has column {indices[at]} in row {row}, outside of 0 to {columns - 1}"
            )
        falls = indices[1:] <= indices[:-1]
        starts = indptr[1:-1]
        falls[starts[(starts > 0) & (starts < len(indices))] - 1] = False
        if falls.any():
            row = int(np.searchsorted(indptr, int(falls.argmax()), side="right")) - 1
            raise self.error(field, f"must be ascending within a row, and is not in row {row}")

    def _values(self, field: str, count: int) -> Any:
        array = self.arrays[field]
        if array.dtype.kind not in "fiub" or array.shape != (count,):
            raise self.error(
                field, f"must be {count} numbers, got {array.dtype} of shape {array.shape}"
            )
        if not np.isfinite(array).all():
            raise self.error(field, f"has {array[~np.isfinite(array)][0]}, which is not finite")
        return array
