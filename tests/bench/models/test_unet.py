"""The U-Net is the one that Keras would make, and the diffusion around it is what it says."""

from __future__ import annotations

import copy
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from badm.bench.models.convolutional import Convolution
from badm.bench.models.diffusion import DECAY, Diffusion, rates
from badm.bench.models.keras_layers import BatchNorm, parameter_counts
from badm.bench.models.running_averages import warmup_decay, warmup_share
from badm.bench.models.unet import (
    WIDTHS,
    Block,
    NoiseEmbedding,
    UNet,
)

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

HALF = tuple(width // 2 for width in WIDTHS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(module: nn.Module) -> Any:
    """With no weight or statistic where it starts, so that none is forgotten."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
        for norm in module.modules():
            if isinstance(norm, BatchNorm):
                norm.running_mean.normal_(0, 0.3, generator=generator)
                norm.running_var.uniform_(0.5, 2, generator=generator)
    return module


# Against Keras


class Built:
    """The network of the public example as one model of Keras, with our weights."""

    def __init__(self, keras: ModuleType, ours: UNet, side: int, widths: tuple[int, ...]) -> None:
        self.keras, self.layers = keras, keras.layers
        self.weights: list[tuple[Any, list[Tensor]]] = []
        images, variance = keras.Input((side, side, 3)), keras.Input((1, 1, 1))
        x = self.convolution(images, ours.image)
        embedded = self.layers.Lambda(self.embedding(widths[0]))(variance)
        embedded = self.layers.UpSampling2D(side, interpolation="nearest")(embedded)
        x = self.layers.Concatenate()([x, embedded])
        skips = []
        for level in ours.down:
            for block in level:  # type: ignore[attr-defined]
                x = self.block(x, block)
                skips.append(x)
            x = self.layers.AveragePooling2D(2)(x)
        for block in ours.bottom:
            x = self.block(x, block)
        for level in ours.up:
            x = self.layers.UpSampling2D(2, interpolation="bilinear")(x)
            for block in level:  # type: ignore[attr-defined]
                x = self.block(self.layers.Concatenate()([x, skips.pop()]), block)
        noise = self.convolution(x, ours.noise, kernel_initializer="zeros")
        self.model = keras.Model([images, variance], noise)
        self.start = {layer.name: layer.get_weights() for layer, _ in self.weights}
        for layer, values in self.weights:
            layer.set_weights([value.detach().numpy() for value in values])

    def embedding(self, width: int) -> Any:
        ops = self.keras.ops

        def embedded(x: Any) -> Any:
            frequencies = ops.exp(ops.linspace(math.log(1.0), math.log(1000.0), width // 2))
            angles = 2.0 * math.pi * frequencies * x
            return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=3)

        return embedded

    def convolution(self, x: Any, ours: nn.Module, **more: str) -> Any:
        assert isinstance(ours, Convolution)
        layer = self.layers.Conv2D(ours.out_channels, ours.kernel_size, padding="same", **more)
        out = layer(x)
        assert ours.bias is not None
        self.weights.append((layer, [ours.weight.permute(2, 3, 1, 0), ours.bias]))
        return out

    def block(self, x: Any, ours: Block) -> Any:
        shortcut = x
        if not isinstance(ours.shortcut, nn.Identity):
            shortcut = self.convolution(x, ours.shortcut)
        norm = self.layers.BatchNormalization(center=False, scale=False)
        x = norm(x)
        self.weights.append((norm, [ours.norm.running_mean, ours.norm.running_var]))
        x = self.convolution(x, ours.first, activation="swish")
        return self.layers.Add()([self.convolution(x, ours.second), shortcut])


@pytest.mark.slow
def test_the_network_is_the_one_of_keras(keras: ModuleType) -> None:
    torch.manual_seed(0)
    ours = shaken(UNet()).eval()
    built = Built(keras, ours, 64, WIDTHS)
    trained = sum(math.prod(w.shape) for w in built.model.trainable_weights)
    rest = sum(math.prod(w.shape) for w in built.model.non_trainable_weights)
    assert (trained, rest) == (1_950_627, 2_880)
    total, own = parameter_counts(ours)
    assert (own, total - own) == (trained, rest)
    x, variance = normal(2, 3, 64, 64), torch.tensor([0.1, 0.97])
    with torch.no_grad():
        theirs = built.model([x.permute(0, 2, 3, 1), variance.view(2, 1, 1, 1)], training=False)
        theirs = theirs.permute(0, 3, 1, 2)
        found = ours(x, variance)
    # Sines of angles up to 6,000 have four digits in single precision.
    torch.testing.assert_close(found, theirs, rtol=0, atol=1e-4 * theirs.abs().max().item())
    assert theirs[0].std() > 100 * (found - theirs).abs().max()


def test_in_training_outputs_and_statistics_are_those_of_keras(keras: ModuleType) -> None:
    torch.manual_seed(0)
    widths = (8, 12, 16)
    ours = shaken(UNet(widths)).train()
    built = Built(keras, ours, 16, widths)
    x, variance = normal(4, 3, 16, 16), torch.rand(4)
    with torch.no_grad():
        theirs = built.model([x.permute(0, 2, 3, 1), variance.view(4, 1, 1, 1)], training=True)
        torch.testing.assert_close(
            ours(x, variance), theirs.permute(0, 3, 1, 2), rtol=1e-3, atol=1e-4
        )
    # The tensors that Keras was given are those of our statistics, which have moved by now.
    for layer, values in built.weights:
        for theirs, own in zip(layer.get_weights(), values, strict=True):
            torch.testing.assert_close(own.detach(), torch.as_tensor(theirs), rtol=1e-3, atol=1e-5)


def test_weights_start_where_those_of_keras_start(keras: ModuleType) -> None:
    keras.utils.set_random_seed(0)
    ours = UNet()
    built = Built(keras, ours, 64, WIDTHS)
    for layer, values in built.weights:
        for theirs, own in zip(built.start[layer.name], values, strict=True):
            start = torch.as_tensor(theirs)
            if start.ndim == 1 or not start.any():  # biases, statistics, the last kernel
                assert torch.equal(own.detach(), start)
            else:
                assert own.abs().max().item() == pytest.approx(start.abs().max().item(), rel=0.05)
                alike = 0.02 + 2 / math.sqrt(own.numel())  # the first has 96 weights alone
                assert own.std().item() == pytest.approx(start.std().item(), rel=alike)
    for norm in (m for m in ours.modules() if isinstance(m, BatchNorm)):
        assert (norm.eps, norm.momentum, norm.affine) == (1e-3, 0.01, False)


def test_the_network_says_at_first_that_there_is_no_noise() -> None:
    assert not UNet(HALF)(normal(2, 3, 32, 32), torch.rand(2)).any()


def test_half_the_widths_are_a_quarter_of_the_weights() -> None:
    assert parameter_counts(UNet(HALF)) == (489_843, 488_403)


def test_the_embedding_tells_variances_apart() -> None:
    embedded = NoiseEmbedding(32)(torch.linspace(0, 1, 200))
    distances = torch.cdist(embedded, embedded) + 10 * torch.eye(200)
    assert distances.min() > 0.1
    first = NoiseEmbedding(32)(torch.tensor([0.3]))[0]
    assert first[0].item() == pytest.approx(math.sin(2 * math.pi * 0.3), abs=1e-5)
    assert first[15].item() == pytest.approx(math.sin(2 * math.pi * 300), abs=1e-2)
    assert first[31].item() == pytest.approx(math.cos(2 * math.pi * 300), abs=1e-2)


def test_every_weight_has_a_gradient_once_the_last_layer_is_not_zero() -> None:
    torch.manual_seed(0)
    network = UNet((8, 8, 16))
    nn.init.ones_(network.noise.weight)
    network(normal(2, 3, 16, 16), torch.rand(2)).square().sum().backward()
    for name, p in network.named_parameters():
        assert p.grad is not None, name
        assert p.grad.any(), name


# The schedule


def test_the_parts_of_image_and_noise_are_those_of_the_example() -> None:
    times = torch.linspace(0, 1, 11)
    image, noise = rates(times)
    torch.testing.assert_close(image**2 + noise**2, torch.ones(11))
    assert image[0].item() == pytest.approx(0.95, abs=1e-6)
    assert image[-1].item() == pytest.approx(0.02, abs=1e-6)
    angles = torch.atan2(noise, image)
    torch.testing.assert_close(angles.diff(), angles.diff().mean().expand(10), rtol=1e-4, atol=0)


# Diffusion


def diffusion(warm_up: bool = False) -> Diffusion:
    torch.manual_seed(0)
    images = torch.rand(32, 3, 16, 16) * torch.tensor([0.2, 0.5, 1.0]).view(1, 3, 1, 1)
    return Diffusion(images, (8, 8, 16), warm_up=warm_up)


def test_channels_are_normalised_by_the_training_images() -> None:
    torch.manual_seed(1)
    images = torch.rand(40, 3, 16, 16) * torch.tensor([0.2, 0.5, 1.0]).view(1, 3, 1, 1)
    model = Diffusion(images, (8, 8, 16))
    normalised = model.normalised(images)
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    variance = normalised.var((0, 2, 3), correction=0)
    torch.testing.assert_close(variance, torch.ones(3), rtol=1e-4, atol=0)


class Oracle(nn.Module):
    """Knows one image, and so the noise in every mixture with it."""

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.image = image
        self.seen: list[Tensor] = []

    def forward(self, mixed: Tensor, variance: Tensor) -> Tensor:
        self.seen.append(variance)
        variance = variance.view(-1, 1, 1, 1)
        return (mixed - (1 - variance).sqrt() * self.image) / variance.sqrt()


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_who_knows_the_noise_finds_the_image(steps: int) -> None:
    model = diffusion()
    image = torch.rand(1, 3, 16, 16)
    oracle = Oracle(model.normalised(image))
    model.average = oracle  # type: ignore[assignment]
    found = model.sample(normal(70, 3, 16, 16), steps)
    torch.testing.assert_close(found, image.expand(70, -1, -1, -1), rtol=0, atol=2e-3)
    # From time 1 down by equal steps, in two pieces.
    seen = torch.stack([v[0] for v in oracle.seen[:steps]])
    torch.testing.assert_close(seen, rates(1 - torch.arange(steps) / steps)[1] ** 2)
    assert [len(v) for v in oracle.seen] == [64] * steps + [6] * steps


def test_who_knows_the_noise_has_no_loss_and_zero_has_that_of_a_normal_variable() -> None:
    model = diffusion().eval()
    assert model.loss(torch.rand(64, 3, 16, 16)).item() == pytest.approx(
        math.sqrt(2 / math.pi), rel=0.02
    )
    image = torch.rand(1, 3, 16, 16)
    model.average = Oracle(model.normalised(image))  # type: ignore[assignment]
    assert model.loss(image.expand(16, -1, -1, -1)).item() == pytest.approx(0, abs=1e-5)


def test_the_network_is_trained_and_its_average_is_evaluated() -> None:
    model = diffusion()
    zero = Oracle(torch.zeros(1))
    model.average = zero  # type: ignore[assignment]
    model.train().loss(torch.rand(4, 3, 16, 16)).backward()
    assert not zero.seen
    assert model.network.noise.bias is not None
    assert model.network.noise.bias.grad is not None
    model.eval().loss(torch.rand(4, 3, 16, 16))
    model.sample(normal(2, 3, 16, 16), 3)
    assert len(zero.seen) == 4


def test_sampling_is_deterministic_for_its_noise() -> None:
    model = diffusion()
    shaken(model.average)
    noise = normal(3, 3, 16, 16)
    before = copy.deepcopy(model.state_dict())
    first = model.sample(noise, 5)
    torch.manual_seed(123)  # nothing is drawn on the way
    state = torch.get_rng_state()
    assert torch.equal(model.train().sample(noise, 5), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(model.sample(normal(3, 3, 16, 16, seed=1), 5), first)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert first.min() >= 0
    assert first.max() <= 1
    assert first.std() > 0.05


# The averaged copy


def test_the_copy_starts_as_the_network_and_is_not_trained() -> None:
    model = diffusion()
    for ours, theirs in zip(
        model.average.state_dict().values(), model.network.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()
    assert not any(p.requires_grad for p in model.average.parameters())


@pytest.mark.parametrize("warm_up", [False, True])
def test_the_copy_is_the_running_average_of_weights_and_statistics(warm_up: bool) -> None:
    model = diffusion(warm_up)
    expected = {n: v.clone().double() for n, v in model.network.state_dict().items()}
    for step in range(1, 30):
        shaken(model.network)
        model.network.down[0][0].norm.num_batches_tracked += 1  # type: ignore[index,union-attr]
        model.update_average()
        decay = min(0.999, (1 + step) / (10 + step)) if warm_up else 0.999
        for name, value in model.network.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    names = [name for name, _ in model.average.named_parameters()]
    names += [n for n in expected if "running" in n]
    assert len(names) > 40
    for name in names:
        found = model.average.state_dict()[name].double()
        torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-5)
    count = model.average.state_dict()["down.0.0.norm.num_batches_tracked"]
    assert count.item() == 29
    assert model.steps.item() == 29
    assert DECAY == 0.999


def test_decays_warm_up_to_what_they_are() -> None:
    assert [warmup_decay(0.999, step) for step in (1, 8, 90)] == [2 / 11, 0.5, 0.91]
    assert warmup_decay(0.999, 100_000) == 0.999


@pytest.mark.parametrize("decay", [1 - 0.01, DECAY])
def test_averages_that_look_up_their_decay_move_as_with_the_number(decay: float) -> None:
    """Bit for bit, also where the warm-up ends: 890 steps for 0.99, 8,990 for 0.999."""
    value = normal(37)
    for step in (0, 1, 7, 100, 888, 889, 890, 891, 8989, 8990, 8991, 10**6):
        average = normal(37, seed=1)
        looked_up = average.clone().lerp_(value, warmup_share(decay, torch.tensor(step)))
        assert torch.equal(looked_up, average.lerp_(value, 1 - warmup_decay(decay, step)))


def test_warm_statistics_have_forgotten_their_start_when_those_of_keras_have_not() -> None:
    warm, keras_like = BatchNorm(3, affine=False, warm_up=True), BatchNorm(3, affine=False)
    for seed in range(100):
        x = 5 + 2 * normal(64, 3, 4, 4, seed=seed)
        assert torch.equal(warm(x), keras_like(x))
    torch.testing.assert_close(warm.running_mean, torch.full((3,), 5.0), rtol=0.02, atol=0)
    torch.testing.assert_close(warm.running_var, torch.full((3,), 4.0), rtol=0.05, atol=0)
    assert keras_like.running_mean.max() < 3.5
    # As at first a batch moves them by nine elevenths.
    once = BatchNorm(1, warm_up=True)
    once(torch.tensor([[0.0], [2.0]]))
    assert once.running_mean.item() == pytest.approx(9 / 11)
    assert once.running_var.item() == pytest.approx(1.0)
