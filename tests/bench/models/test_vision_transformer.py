"""The vision transformer is the one that Keras would make."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from badm.bench.models.attention import SelfAttention
from badm.bench.models.vision_transformer import Block, VisionTransformer, patches

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def array(x: Tensor) -> Any:
    return x.detach().numpy()


def images(count: int, side: int = 224) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, side, side, 3), generator=generator, dtype=torch.uint8)


def network() -> VisionTransformer:
    """With biases and gains that are not what they start from, so that none is forgotten."""
    torch.manual_seed(0)
    made = VisionTransformer(scale=1 / 255).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.2 * torch.randn_like(p)) if p.ndim == 1 else None
    return made


class Like:
    """The network of the public example, layer by layer of Keras, with our weights."""

    def __init__(self, keras: ModuleType) -> None:
        self.keras, self.numbers = keras, 0

    def made(self, layer: Any, shape: Any, weights: list[Tensor]) -> Any:
        layer.build(shape)
        layer.set_weights([*map(array, weights)])
        self.numbers += layer.count_params()
        return layer

    def dense(self, x: Tensor, ours: nn.Linear, activation: str | None = None) -> Any:
        layer = self.keras.layers.Dense(ours.out_features, activation=activation)
        return self.made(layer, x.shape, [ours.weight.T, ours.bias])(x)

    def norm(self, x: Tensor, ours: nn.LayerNorm) -> Any:
        layer = self.keras.layers.LayerNormalization(epsilon=1e-6)
        return self.made(layer, x.shape, [ours.weight, ours.bias])(x)

    def perceptron(self, x: Tensor, ours: nn.Module) -> Any:
        for layer in ours.modules():
            if isinstance(layer, nn.Linear):
                x = self.dense(x, layer, "gelu")
        return x

    def attention(self, x: Tensor, ours: SelfAttention) -> Any:
        weights = []
        for layer in (ours.query, ours.key, ours.value):
            weights += [layer.weight.T.reshape(64, 4, 64), layer.bias.reshape(4, 64)]
        weights += [ours.merge.weight.T.reshape(4, 64, 64), ours.merge.bias]
        layer = self.keras.layers.MultiHeadAttention(num_heads=4, key_dim=64, dropout=0.1)
        layer.build(x.shape, x.shape)
        layer.set_weights([*map(array, weights)])
        self.numbers += layer.count_params()
        return layer(x, x)

    def network(self, pixels: Tensor, ours: VisionTransformer) -> Any:
        cut = self.keras.ops.image.extract_patches(pixels, (32, 32), data_format="channels_last")
        tokens = self.dense(cut.reshape(len(pixels), 49, 3072), ours.project)
        embedding = self.keras.layers.Embedding(49, 64)
        positions = self.made(embedding, (49,), [ours.positions.weight])(torch.arange(49))
        tokens = tokens + positions
        for block in ours.blocks:
            assert isinstance(block, Block)
            normed = self.norm(tokens, block.first_norm)
            tokens = self.attention(normed, block.attention) + tokens
            normed = self.norm(tokens, block.second_norm)
            tokens = self.perceptron(normed, block.perceptron) + tokens
        flat = self.norm(tokens, ours.norm).flatten(1)
        return self.dense(self.perceptron(flat, ours.head), ours.output)


@pytest.mark.slow
def test_the_network_is_the_one_of_keras(keras: ModuleType) -> None:
    ours, x, like = network(), images(2), Like(keras)
    theirs = like.network(x.float() / 255, ours)
    assert like.numbers == sum(p.numel() for p in ours.parameters()) == 9_615_332
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours(x), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "size"), [((2, 224, 224, 3), 32), ((1, 6, 9, 2), 3)], ids=str)
def test_patches_are_those_of_keras(keras: ModuleType, shape: tuple[int, ...], size: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    theirs = keras.ops.image.extract_patches(x, (size, size), data_format="channels_last")
    assert torch.equal(patches(x, size), theirs.flatten(1, 2))


def test_weights_start_where_those_of_keras_start(keras: ModuleType) -> None:
    torch.manual_seed(0)
    ours = VisionTransformer()
    embedding = keras.layers.Embedding(49, 64)
    embedding.build((49,))
    theirs = torch.as_tensor(embedding.get_weights()[0])
    for weight in (ours.positions.weight, theirs):
        assert 0.0498 < weight.abs().max() <= 0.05
        assert weight.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.05)
    for layer, shape in (
        (ours.project, (3072, 64)),
        (ours.head[1][0], (3136, 2048)),
        (ours.blocks[3].perceptron[0], (64, 128)),
    ):
        assert isinstance(layer, nn.Linear)
        glorot = keras.initializers.GlorotUniform(seed=0)(shape)
        assert layer.weight.abs().max().item() == pytest.approx(glorot.abs().max().item(), rel=1e-2)
        assert layer.weight.std().item() == pytest.approx(glorot.std().item(), rel=2e-2)
    for name, p in ours.named_parameters():
        if "bias" in name:
            assert not p.any(), name
        if "norm.weight" in name:
            assert (p == 1).all(), name


def test_dropout_is_where_the_example_has_it() -> None:
    """Behind every dense layer of a perceptron, before the head, and in attention."""
    ours = VisionTransformer()
    for block in ours.blocks:
        assert [m.p for m in block.modules() if isinstance(m, nn.Dropout)] == [0.1, 0.1]
        assert block.attention.dropout == 0.1
    kinds = [type(m).__name__ for m in ours.head.modules() if not isinstance(m, nn.Sequential)]
    assert kinds == ["Dropout", *5 * ["Dense", "GELU", "Dropout"]]
    assert {m.p for m in ours.head.modules() if isinstance(m, nn.Dropout)} == {0.3}


def test_pixels_in_bytes_are_scaled_as_floats_would_be() -> None:
    torch.manual_seed(0)
    raw = VisionTransformer(32, 8, width=16, blocks=1, head=(8,)).eval()
    scaled = VisionTransformer(32, 8, width=16, blocks=1, head=(8,), scale=1 / 255).eval()
    scaled.load_state_dict(raw.state_dict())
    x = images(3, side=32)
    torch.testing.assert_close(raw(x), raw(x.float()), rtol=0, atol=0)
    torch.testing.assert_close(scaled(x), raw(x.float() / 255))


def test_a_side_that_is_no_multiple_of_the_patch_is_refused() -> None:
    with pytest.raises(ValueError, match="side must be a multiple of patch, got 224 and 30"):
        VisionTransformer(224, 30)
