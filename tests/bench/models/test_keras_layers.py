"""Layers and networks of the graph tasks are those of Keras, and sparse input is only faster."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional

from badm.bench.data.graphs import synthetic
from badm.bench.models import half_dropout, sparse_input
from badm.bench.models.feed_forward import FeedForward, perceptron
from badm.bench.models.graph_network import Edges, GraphConvolution, GraphNetwork, unit_rows
from badm.bench.models.half_dropout import HalfDropout, random_bytes, unpack
from badm.bench.models.keras_layers import BatchNorm, Dense, parameter_counts
from badm.bench.models.sparse_input import SparseInput, moments

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

GRAPH = synthetic(nodes=60, features=21, classes=3)
ALL = torch.arange(60)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All coins show heads: dropout keeps and doubles everything."""

    def ones(count: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.full((count,), 255, dtype=torch.uint8, device=device)

    monkeypatch.setattr(half_dropout, "random_bytes", ones)
    monkeypatch.setattr(sparse_input, "random_bytes", ones)


def array(x: Tensor) -> Any:
    return x.detach().numpy()


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    a, b = torch.as_tensor(a).detach(), torch.as_tensor(b).detach()
    return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


def uneven(module: nn.Module) -> nn.Module:
    """Biases, gains and averages that are not what they start from, so that none is forgotten."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.2 * torch.randn_like(p)) if p.ndim == 1 else None
        for norm in module.modules():
            if isinstance(norm, BatchNorm):
                norm.running_mean.uniform_(-0.3, 0.3)
                norm.running_var.uniform_(0.5, 1.5)
    return module


class Like:
    """The layers of the Keras example, with the weights of ours, handed out in their order."""

    def __init__(self, keras: ModuleType, ours: nn.Module, training: bool) -> None:
        self.keras, self.training = keras, training
        kinds = (BatchNorm, nn.Linear)
        self.ours = [m for m in ours.modules() if isinstance(m, kinds)]
        self.norms: list[tuple[BatchNorm, Any]] = []
        self.numbers = 0

    def ffn(self, x: Any) -> Any:
        """``create_ffn`` of the example; its dropout keeps and doubles everything."""
        for _ in range(2):
            norm, dense = self.ours.pop(0), self.ours.pop(0)
            layer = self.keras.layers.BatchNormalization()
            layer.build(x.shape)
            layer.set_weights(
                [*map(array, (norm.weight, norm.bias, norm.running_mean, norm.running_var))]
            )
            self.norms.append((norm, layer))
            self.numbers += layer.count_params()
            x = layer(x, training=self.training)
            x = 2 * x if self.training else x
            x = self.dense(x, dense, "gelu")
        return x

    def dense(self, x: Any, ours: nn.Module, activation: str | None = None) -> Any:
        layer = self.keras.layers.Dense(ours.out_features, activation=activation)
        layer.build(x.shape)
        layer.set_weights([array(ours.weight.T), array(ours.bias)])
        self.numbers += layer.count_params()
        return layer(x)

    def baseline(self, x: Any) -> Any:
        x = self.ffn(x)
        for _ in range(4):
            x = x + self.ffn(x)
        return self.dense(x, self.ours.pop(0))

    def graph_network(self, x: Any, adjacency: csr_array) -> Any:
        edges = [torch.from_numpy(ends.astype(np.int64)) for ends in adjacency.nonzero()]
        weights = torch.full((adjacency.nnz, 1), 1 / adjacency.nnz)
        x = self.ffn(x)
        for _ in range(2):
            x = x + self.convolution(x, *edges, weights)
        return self.dense(self.ffn(x), self.ours.pop(0))

    def convolution(self, x: Any, receivers: Any, senders: Any, weights: Any) -> Any:
        ops = self.keras.ops
        messages = self.ffn(ops.take(x, senders, axis=0)) * weights
        heard = ops.segment_sum(messages, receivers, num_segments=x.shape[0])
        made = self.ffn(ops.concatenate([x, heard], axis=1))
        return ops.normalize(made, axis=-1, epsilon=1e-6)


def test_a_dense_layer_starts_as_that_of_keras(keras: ModuleType) -> None:
    torch.manual_seed(0)
    ours = Dense(300, 200)
    theirs = keras.layers.Dense(200)
    theirs.build((None, 300))
    kernel, bias = map(torch.as_tensor, theirs.get_weights())
    limit = (6 / 500) ** 0.5
    for weights in (ours.weight, kernel):
        assert 0.999 * limit < weights.abs().max() <= limit
        assert weights.std().item() == pytest.approx(limit / 3**0.5, rel=0.01)
    assert not ours.bias.any()
    assert not bias.any()


def test_a_perceptron_has_the_layers_that_layer_wise_methods_take() -> None:
    torch.manual_seed(0)
    layers = list(perceptron(10, 3))
    assert [type(layer) for layer in layers[::2]] == [nn.Linear] * 3
    assert [type(layer) for layer in layers[1::2]] == [nn.ReLU] * 2
    assert not any(layer.bias.any() for layer in layers[::2])


@pytest.mark.parametrize("shape", [(32, 5), (1, 5), (4, 5, 3, 2)], ids=str)
def test_batch_norm_is_that_of_keras(keras: ModuleType, shape: tuple[int, ...]) -> None:
    """The output in training, the running averages after it, and the output by these."""
    ours = uneven(BatchNorm(5))
    theirs = keras.layers.BatchNormalization(axis=1)
    theirs.build(shape)
    theirs.set_weights([*map(array, (ours.weight, ours.bias, ours.running_mean, ours.running_var))])
    for k in range(3):
        x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(k)) + 1
        assert close(ours.train()(x), theirs(x, training=True))
        assert close(ours.running_mean, theirs.moving_mean.value)
        assert close(ours.running_var, theirs.moving_variance.value)
        assert close(ours.eval()(x), theirs(x, training=False))


def test_batch_norm_without_momentum_averages_all_batches() -> None:
    """What methods that calibrate BatchNorm rely on."""
    norm = BatchNorm(1)
    norm.reset_running_stats()
    norm.momentum = None
    for mean in (1.0, 2.0, 6.0):
        norm(torch.tensor([[mean - 1], [mean + 1]]))
    assert norm.running_mean.item() == pytest.approx(3.0)
    assert norm.running_var.item() == pytest.approx(1.0, rel=1e-3)


def test_half_dropout_is_fair_and_passes_gradients_of_what_it_kept() -> None:
    torch.manual_seed(0)
    x = torch.rand(100, 77) + 1
    x.requires_grad_()
    kept = HalfDropout()(x)
    kept.sum().backward()
    assert set((kept / x).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(x.grad, (kept / x).detach())
    share = (kept > 0).double()
    assert abs(share.mean().item() - 0.5) < 0.02
    assert (share.mean(0) - 0.5).abs().max() < 0.25  # every column, the last ones too


def test_half_dropout_draws_from_torchs_generator_alone() -> None:
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(HalfDropout()(torch.ones(50)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(("piece", "masks"), [(64, None), (1 << 19, None), (64, 16)])
def test_sparse_input_equals_the_dense_layers_in_training(
    monkeypatch: pytest.MonkeyPatch, piece: int, masks: int | None
) -> None:
    """Output, gradients and running averages, whatever pieces the coins are unpacked in."""
    monkeypatch.setattr(sparse_input, "PIECE", piece)
    layer = uneven(SparseInput(21, 4, masks))
    torch.manual_seed(5)
    out = layer(GRAPH.features)
    toward = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * toward).sum().backward()
    gradients = {name: p.grad.clone() for name, p in layer.named_parameters()}
    averages = layer.norm.running_mean, layer.norm.running_var

    torch.manual_seed(5)
    drawn = masks or 60
    coins = unpack(random_bytes(drawn * 3)).view(drawn, 24)[:, :21]  # 3 bytes for 21 features
    if masks:
        coins = coins[torch.randperm(60) % masks]
    layer.zero_grad()
    norm = uneven(SparseInput(21, 4)).norm
    norm.weight, norm.bias = layer.norm.weight, layer.norm.bias
    x = torch.from_numpy(GRAPH.features.toarray())
    expected = layer.dense(norm(x) * coins * 2)
    (expected * toward).sum().backward()
    assert close(out, expected)
    for name, p in layer.named_parameters():
        assert close(gradients[name], p.grad, 1e-4), name
    assert close(averages[0], norm.running_mean)
    assert close(averages[1], norm.running_var)


def test_sparse_input_equals_the_dense_layers_in_evaluation() -> None:
    layer = uneven(SparseInput(21, 4)).eval()
    x = torch.from_numpy(GRAPH.features.toarray())
    out, expected = layer(GRAPH.features), layer.dense(layer.norm(x))
    assert close(out, expected)
    for made in (out, expected):
        layer.zero_grad()
        made.square().sum().backward()
        gradients = [p.grad.clone() for p in layer.parameters()]
        if made is out:
            first = gradients
    assert all(close(a, b, 1e-4) for a, b in zip(first, gradients, strict=True))


def test_moments_of_large_equal_values_do_not_cancel() -> None:
    x = np.full((1000, 2), 1e4, np.float32)
    x[0] = 1e4 + 1
    mean, variance = moments(csr_array(x))
    assert close(mean, x.astype(np.float64).mean(0))
    assert close(variance, x.astype(np.float64).var(0), 1e-4)


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("training", [False, True])
def test_the_feed_forward_network_is_that_of_keras(keras: ModuleType, training: bool) -> None:
    ours = uneven(FeedForward(GRAPH.features, 3)).train(training)
    like = Like(keras, ours, training)
    theirs = like.baseline(torch.from_numpy(GRAPH.features.toarray()))
    assert close(ours(ALL), theirs, 1e-4)
    assert like.numbers == parameter_counts(ours)[0]
    assert averages_agree(like)


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("training", [False, True])
def test_the_graph_network_is_that_of_keras(keras: ModuleType, training: bool) -> None:
    ours = uneven(GraphNetwork(GRAPH.features, Edges.of(GRAPH.adjacency), 3)).train(training)
    like = Like(keras, ours, training)
    theirs = like.graph_network(torch.from_numpy(GRAPH.features.toarray()), GRAPH.adjacency)
    nodes = torch.tensor([3, 59, 0])
    assert close(ours(nodes), theirs[nodes], 1e-4)
    assert like.numbers == parameter_counts(ours)[0]
    assert averages_agree(like)


def test_short_rows_are_normalised_as_tensorflow_does(keras: ModuleType) -> None:
    """Its floor of 1e-12 is for the square of the length; that of Keras is for the length."""
    x = torch.tensor([[3.0, 4.0], [3e-5, 4e-5], [3e-7, 4e-7], [0.0, 0.0]])
    assert close(unit_rows(x), keras.ops.normalize(x, axis=-1, epsilon=1e-6))
    assert close(unit_rows(x)[2], torch.tensor([0.3, 0.4]))


def averages_agree(like: Like) -> bool:
    return not like.ours and all(
        close(norm.running_mean, layer.moving_mean.value, 1e-4)
        and close(norm.running_var, layer.moving_variance.value, 1e-4)
        for norm, layer in like.norms
    )


def test_parameter_counts_on_cora_are_those_keras_prints() -> None:
    cora = synthetic(nodes=7, features=1433, classes=7)
    assert parameter_counts(FeedForward(cora.features, 7)) == (62_507, 59_065)
    graph_network = GraphNetwork(cora.features, Edges.of(cora.adjacency), 7)
    assert parameter_counts(graph_network) == (67_179, 63_481)


def test_messages_by_edge_and_by_sender_are_one_in_evaluation() -> None:
    convolution = uneven(GraphConvolution("edge")).eval()
    x = torch.randn(60, 32, generator=torch.Generator().manual_seed(0))
    edges = Edges.of(GRAPH.adjacency, "degree")
    by_edge = convolution.prepare(x)[edges.senders]
    heard = torch.zeros(60, 32).index_add(0, edges.receivers, by_edge) * edges.weights
    made = convolution.update(torch.cat([x, heard], 1))
    assert close(convolution(x, edges), functional.normalize(made), 1e-4)


def test_by_edge_each_edge_has_coins_of_its_own_and_by_sender_not() -> None:
    """Two receivers of one sender hear the same only if its message is made once."""
    adjacency = csr_array(np.array([[0, 0, 1, 0], [0, 0, 1, 0]] + [[0] * 4] * 2, np.float32))
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    heard: dict[str, Tensor] = {}
    for messages in ("edge", "sender"):
        convolution = uneven(GraphConvolution(messages)).train()
        convolution.update.register_forward_pre_hook(
            lambda _, given, messages=messages: heard.update({messages: given[0][:, 32:]})
        )
        convolution(x, Edges.of(adjacency))
    assert torch.equal(heard["sender"][0], heard["sender"][1])
    assert not torch.equal(heard["edge"][0], heard["edge"][1])
    assert not heard["edge"][2:].any()


def test_a_model_does_not_keep_its_graph_in_its_state() -> None:
    model = GraphNetwork(GRAPH.features, Edges.of(GRAPH.adjacency), 3)
    assert sum(t.numel() for t in model.state_dict().values()) < 1.02 * parameter_counts(model)[0]
