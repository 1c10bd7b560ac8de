"""Self-attention is that of Keras: its numbers, its start, its mask and its dropout."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from badm.bench.models.attention import SelfAttention

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WIDTH, HEADS, KEY_WIDTH = 12, 3, 5  # no two alike, so that none is taken for another


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(dropout: float = 0.0) -> SelfAttention:
    """With biases that are not zero, so that none is forgotten unnoticed."""
    torch.manual_seed(0)
    made = SelfAttention(WIDTH, HEADS, KEY_WIDTH, dropout)
    with torch.no_grad():
        for layer in (made.query, made.key, made.value, made.merge):
            layer.bias.normal_()
    return made


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_keras(keras: ModuleType, masked: bool) -> None:
    ours, x = attention(), normal(2, 7, WIDTH)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_WIDTH)
    theirs.build(x.shape, x.shape)
    copied = []
    for layer in (ours.query, ours.key, ours.value):
        copied += [
            layer.weight.T.reshape(WIDTH, HEADS, KEY_WIDTH),
            layer.bias.reshape(HEADS, KEY_WIDTH),
        ]
    copied += [ours.merge.weight.T.reshape(HEADS, KEY_WIDTH, WIDTH), ours.merge.bias]
    theirs.set_weights([weight.detach().numpy() for weight in copied])
    if masked:
        heard = torch.arange(7) < torch.tensor([[4], [7]])
        out = ours(x, heard[:, None, None, :])
        expected = theirs(x, x, attention_mask=heard[:, None, :])
    else:
        out, expected = ours(x), theirs(x, x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_kernels_start_where_those_of_keras_start(keras: ModuleType) -> None:
    torch.manual_seed(0)
    ours = SelfAttention(96, heads=4, key_width=48)
    # The shapes are Keras's: what they are taken for decides how far the weights may go.
    for layer, shape in (
        (ours.query, (96, 4, 48)),
        (ours.key, (96, 4, 48)),
        (ours.value, (96, 4, 48)),
        (ours.merge, (4, 48, 96)),
    ):
        theirs = keras.initializers.GlorotUniform(seed=0)(shape)
        assert layer.weight.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=1e-2)
        assert layer.weight.std().item() == pytest.approx(theirs.std().item(), rel=2e-2)
        assert not layer.bias.any()


def test_dropout_is_of_the_weights_and_in_training_alone() -> None:
    layer = attention(dropout=0.25)
    # Alike keys weigh alike, and values that are unit vectors show each weight by itself.
    query = key = torch.zeros(1, 200, HEADS * KEY_WIDTH)
    value = torch.eye(KEY_WIDTH).repeat(40, HEADS)[None]
    mixed = layer.mix(query, key, value).unflatten(2, (HEADS, KEY_WIDTH))
    # Of 200 weights of 1/200 each value vector has 40: about 30 are left, a third larger.
    left = mixed * 200 * 0.75
    torch.testing.assert_close(left, left.round(), rtol=0, atol=1e-3)
    assert left.mean().item() == pytest.approx(30, rel=0.02)
    assert left.std().item() == pytest.approx((40 * 0.75 * 0.25) ** 0.5, rel=0.1)
    even = layer.eval().mix(query, key, value)
    torch.testing.assert_close(even, torch.full_like(even, 1 / KEY_WIDTH))
