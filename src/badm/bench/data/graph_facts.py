"""Recorded facts about the six graphs, and checks of files against them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from badm.bench.data.dataset import FileProblem

if TYPE_CHECKING:
    from badm.bench.data.graphs import Graph


@dataclass(frozen=True)
class Facts:
    """Numbers that no other graph has, whatever the order of its nodes and classes.

    An edge is an entry of the adjacency matrix, whose rows are the citing papers: the longest row
    shows which way the edges point.
    """

    nodes: int
    edges: int
    longest_row: int
    features: int
    nonzeros: int
    classes: tuple[int, ...]  # nodes per class, ascending


# fmt: off
GRAPHS: dict[str, Facts] = {
    "cora": Facts(2_708, 5_429, 5, 1_433, 49_216, (180, 217, 298, 351, 418, 426, 818)),
    "citeseer": Facts(3_312, 4_715, 26, 3_703, 105_165, (249, 508, 590, 596, 668, 701)),
    "pubmed": Facts(19_717, 88_648, 171, 500, 988_031, (4_103, 7_739, 7_875)),
    "physics": Facts(
        34_493, 495_924, 382, 8_415, 1_137_311, (2_753, 3_519, 5_045, 5_750, 17_426)
    ),
    "cs": Facts(
        18_333, 163_788, 136, 6_805, 1_092_079,
        (118, 371, 420, 429, 462, 708, 775, 876, 924, 1_394, 1_444, 2_033, 2_050, 2_193, 4_136),
    ),
    "computers": Facts(
        13_752, 491_722, 2_992, 767, 3_675_081,
        (291, 308, 436, 487, 542, 818, 1_414, 2_142, 2_156, 5_158),
    ),
}
# fmt: on


def check(name: str, folder: Path) -> list[FileProblem]:
    """List what is wrong with the file of a graph; empty if it is intact."""
    from badm.bench.data.graphs import GraphError, read

    file = folder / f"{name}.npz"
    try:
        wrong = list(differences(read(file), GRAPHS[name]))
    except GraphError as error:
        wrong = [str(error).removeprefix(str(file)).lstrip(": ")]
    return [FileProblem(f"{folder.name}/{file.name}", "corrupt", message) for message in wrong]


def differences(graph: Graph, known: Facts) -> Iterator[str]:
    """Yield each fact of a graph that differs from the recorded one, with both numbers.

    >>> from badm.bench.data.graphs import synthetic
    >>> list(differences(synthetic(), GRAPHS["cora"]))[0]
    'adj_shape has 300 nodes, not the 2,708 known'
    """
    found = facts(graph)
    for field, what, have, want in (
        ("adj_shape", "nodes", found.nodes, known.nodes),
        ("adj_indices", "edges", found.edges, known.edges),
        ("adj_indptr", "edges in its longest row", found.longest_row, known.longest_row),
        ("attr_shape", "features", found.features, known.features),
        ("attr_indices", "non-zeros", found.nonzeros, known.nonzeros),
    ):
        if have != want:
            yield f"{field} has {have:,} {what}, not the {want:,} known"
    if found.classes != known.classes:
        yield f"labels has classes of {found.classes} nodes, not the {known.classes} known"


def facts(graph: Graph) -> Facts:
    """Compute the facts of a graph."""
    rows = graph.adjacency.indptr
    return Facts(
        nodes=graph.adjacency.shape[0],
        edges=graph.adjacency.nnz,
        longest_row=int((rows[1:] - rows[:-1]).max()),
        features=graph.features.shape[1],
        nonzeros=graph.features.nnz,
        classes=tuple(sorted(graph.labels.bincount().tolist())),
    )
