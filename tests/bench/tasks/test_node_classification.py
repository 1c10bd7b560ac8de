"""``node-*``: the paper's splits and settings, runs that learn, and memory that suffices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from badm.bench.engine.environment import peak_memory, reset_peak_memory
from badm.bench.engine.task_data import load_splits
from badm.bench.methods import find as find_method
from badm.bench.models.keras_layers import parameter_counts
from badm.bench.task import check_task
from badm.bench.tasks import TASKS, find
from badm.bench.tasks.node_classification import GRAPHS, NETWORKS, NodeClassification
from badm.bench.tasks.node_classification import TASKS as NODE_TASKS
from badm.bench.tasks.node_paper import STATED
from tests.helpers.engine_tasks import comparable, train


def made(graph: str, network: str) -> NodeClassification:
    return NodeClassification(graph, network, "smoke")


def test_every_graph_has_every_network() -> None:
    assert set(NODE_TASKS) == {f"node-{g}-{n}" for g in GRAPHS for n in NETWORKS}
    assert len(NODE_TASKS) == 30
    assert set(NODE_TASKS) <= set(TASKS)
    for name in NODE_TASKS:
        for scale in ("smoke", "cpu", "paper"):
            task = find(name, scale).task
            check_task(task)
            assert task.name == name
            assert task.evaluate_every <= task.steps


@pytest.mark.parametrize("name", NODE_TASKS)
@pytest.mark.parametrize("method", ["badm", "adam"])
def test_every_task_runs_at_smoke_scale(tmp_path: Path, name: str, method: str) -> None:
    task = TASKS[name]("smoke")
    done = train(task, tmp_path, find_method(method), steps=3)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"]
    assert set(done.result.test or {}) == {"accuracy", "loss"}


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_learns_the_synthetic_graph(tmp_path: Path, network: str) -> None:
    task = made("cora", network)
    done = train(task, tmp_path, find_method("adam"), setting={"lr": 0.01})
    assert done.result is not None
    assert done.result.test is not None
    assert done.result.test["accuracy"] > 0.6  # of four classes
    assert done.result.score is not None
    assert done.result.score >= (task.target or 0)


@pytest.mark.slow
def test_equal_runs_are_equal_and_others_are_not(tmp_path: Path) -> None:
    method = find_method("adam")
    runs = [
        train(made("pubmed", "gnn"), tmp_path / name, method, seed=seed, steps=4)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert comparable(runs[0]) == comparable(runs[1])
    assert runs[0].result != runs[2].result


@pytest.mark.parametrize("graph", ["cora", "pubmed"])
def test_splits_part_the_nodes_and_are_always_the_same(graph: str) -> None:
    splits = made(graph, "dnn").data()
    parts = [splits.train, splits.validation, splits.test]
    nodes = torch.cat([part.indices for part in parts])
    assert torch.equal(nodes.sort().values, torch.arange(300))
    for part in parts:
        assert torch.equal(part.labels, part.graph.labels[part.indices])
    training = len(splits.train.indices) + len(splits.validation.indices)
    assert len(splits.train.indices) == int(0.85 * training)
    if graph == "pubmed":
        assert len(splits.test.indices) == 90
    again = made(graph, "gnn").data()
    assert torch.equal(again.test.indices, splits.test.indices)


def test_the_perceptron_gives_layer_wise_methods_its_training_set() -> None:
    task = made("cora", "mlp")
    splits = task.data()
    x, y = task.supervised(splits.train)
    assert torch.equal(y, splits.train.labels)
    features = splits.train.graph.features.toarray()
    assert torch.equal(x, torch.from_numpy(features)[splits.train.indices])
    (batch, _) = task.batch(splits.train, torch.tensor([2, 0]))
    assert torch.equal(batch, x[[2, 0]])
    assert made("cora", "dnn").supervised(splits.train) is None


@pytest.mark.slow
def test_evaluation_is_over_the_whole_split() -> None:
    task = made("cora", "gnn")
    splits = load_splits(task)
    model = task.model(splits).eval()
    with torch.no_grad():
        figures = task.evaluate(model, splits.test)
        wrong = 1 - figures["accuracy"]
        logits = torch.cat([model(node[None]) for node in splits.test.indices])
    assert figures["accuracy"] == pytest.approx(
        (logits.argmax(1) == splits.test.labels).double().mean().item()
    )
    assert wrong * len(splits.test.labels) == pytest.approx(round(wrong * len(splits.test.labels)))


def test_settings_and_scores_are_those_of_the_paper() -> None:
    for graph, stated in STATED.items():
        task = NodeClassification(graph, "gnn", "paper")
        assert (task.batch_size, task.sub_batch_size) == (stated.batch_size, stated.sub_batch_size)
        assert stated.batch_size % stated.sub_batch_size == 0
        assert stated.rho + stated.sigma == 1000
        assert task.paper is not None
        assert task.paper.lr == 1e-3
        assert "dladmm" not in task.paper.scores
        assert len(task.paper.scores) == 6
    cora = NodeClassification("cora", "mlp").paper
    assert cora is not None
    assert cora.scores["dladmm"] == 0.3428
    assert cora.scores["badm-printed"] == 0.7464
    for variant in ("gnn-degree", "gnn-sender"):
        paper = NodeClassification("cora", variant).paper
        assert paper is not None
        assert (paper.rho, dict(paper.scores)) == (200, {})


SIZES = {
    "cora": (1_163, 206, 1_339),
    "citeseer": (1_970, 348, 994),
    "pubmed": (11_730, 2_071, 5_916),
    "physics": (20_523, 3_622, 10_348),
    "cs": (10_908, 1_925, 5_500),
    "computers": (8_182, 1_444, 4_126),
}


@pytest.mark.data
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.usefixtures("badm_data")
def test_splits_of_the_real_graphs_have_the_sizes_stated(graph: str) -> None:
    task = NodeClassification(graph, "mlp", "paper")
    splits = task.data()
    sizes = [len(part.indices) for part in (splits.train, splits.validation, splits.test)]
    assert tuple(sizes) == SIZES[graph]
    assert task.steps == 300 * math.ceil(sizes[0] / task.batch_size)
    assert not splits.synthetic
    # Each class is in each split, in about the share that it has of all.
    share = splits.train.graph.labels.bincount() / len(splits.train.graph.labels)
    for part in (splits.train, splits.test):
        own = part.labels.bincount(minlength=len(share)) / len(part.labels)
        assert (own - share).abs().max() < 0.03


@pytest.mark.data
@pytest.mark.usefixtures("badm_data")
def test_the_real_cora_networks_have_keras_parameters() -> None:
    for network, counts in {"dnn": (62_507, 59_065), "gnn": (67_179, 63_481)}.items():
        task = NodeClassification("cora", network)
        assert parameter_counts(task.model(load_splits(task))) == counts


@pytest.mark.data
@pytest.mark.usefixtures("badm_data")
def test_adam_learns_the_real_cora(tmp_path: Path) -> None:
    task = NodeClassification("cora", "dnn")
    done = train(task, tmp_path, find_method("adam"), setting={"lr": 0.01}, steps=200)
    assert done.result is not None
    assert done.result.test is not None
    assert done.result.test["accuracy"] > 0.6


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("badm_data")
@pytest.mark.parametrize("network", ["dnn", "gnn", "mlp"])
def test_physics_trains_within_four_gigabytes(tmp_path: Path, network: str) -> None:
    """Its features alone would take 1.2 GB if they were dense, with several copies in training."""
    reset_peak_memory()
    before = peak_memory()  # what other tests have loaded, frameworks among it
    assert before is not None
    task = NodeClassification("physics", network, "paper")
    done = train(task, tmp_path, find_method("adam"), steps=1)
    assert done.result is not None
    assert done.result.status == "finished"
    assert done.result.peak_bytes is not None
    assert done.result.peak_bytes - before < 4e9
