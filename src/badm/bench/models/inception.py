"""Inception-V3 without its classifier: 2,048 features of an image, with weights from a file.

Two kinds of files are read: Keras's (``inception_v3_..._notop.h5``) and a state dict of torch with
the usual names. The network is that of Keras for both: average pooling ignores the padding.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d

from badm.bench import formatting
from badm.bench.models.features import FeatureNetwork

SIDE = 75  # pixels: the smallest input of the network, which the public example resizes to
FEATURES = 2048
HDF5 = b"\x89HDF\r\n\x1a\n"  # magic number
# Keras's names of the entries of batch normalisation, by torch's names.
NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


class InceptionError(ValueError):
    """A file does not hold the weights of Inception-V3; the message names file and entry."""


@dataclass(frozen=True)
class Shape:
    """A convolution: output channels, kernel, stride. With a stride there is no padding."""

    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1


@dataclass(frozen=True)
class Branch:
    """One branch of a block: pooling, successive convolutions, and finally parallel ones."""

    row: tuple[tuple[str, Shape], ...] = ()
    fork: tuple[tuple[str, Shape], ...] = ()
    pool: Literal["mean", "max"] | None = None


class Unit(nn.Module):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(self, inputs: int, shape: Shape, *, padded: bool = True) -> None:
        super().__init__()
        height, width = shape.kernel
        padding = (height // 2, width // 2) if padded and shape.stride == 1 else 0
        self.conv = nn.Conv2d(
            inputs, shape.channels, shape.kernel, shape.stride, padding, bias=False
        )
        self.bn = nn.BatchNorm2d(shape.channels, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.conv(x))
        return out.relu()


class Block(nn.Module):
    """Parallel branches, whose channels are concatenated."""

    def __init__(self, inputs: int, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.branches, self.channels = branches, 0
        for branch in branches:
            before = inputs
            for name, shape in branch.row:
                self.add_module(name, Unit(before, shape))
                before = shape.channels
            for name, shape in branch.fork:
                self.add_module(name, Unit(before, shape))
            self.channels += sum(shape.channels for _, shape in branch.fork) or before

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for branch in self.branches:
            y = _pooled(x, branch.pool)
            for name, _ in branch.row:
                y = self.get_submodule(name)(y)
            parts += [self.get_submodule(name)(y) for name, _ in branch.fork] or [y]
        return torch.cat(parts, 1)


class InceptionV3(nn.Module):
    """Maps images ``(N, 3, H, W)`` from -1 to 1, of at least 75×75 pixels, to 2,048 features.

    >>> network = InceptionV3().eval()
    >>> network(torch.zeros(1, 3, 75, 75)).shape
    torch.Size([1, 2048])
    >>> sum(unit.conv.weight.numel() for unit in network.units().values())
    21751136
    """

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Unit(3, Shape(32, (3, 3), 2))
        self.Conv2d_2a_3x3 = Unit(32, Shape(32, (3, 3)), padded=False)
        self.Conv2d_2b_3x3 = Unit(32, Shape(64, (3, 3)))
        self.Conv2d_3b_1x1 = Unit(64, Shape(80))
        self.Conv2d_4a_3x3 = Unit(80, Shape(192, (3, 3)), padded=False)
        channels = 192
        self.mixed = tuple(BLOCKS)
        for name, branches in BLOCKS.items():
            block = Block(channels, branches)
            self.add_module(name, block)
            channels = block.channels

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        x = self.Conv2d_3b_1x1(max_pool2d(x, 3, 2))
        x = max_pool2d(self.Conv2d_4a_3x3(x), 3, 2)
        for name in self.mixed:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))

    def units(self) -> dict[str, Unit]:
        """List all 94 convolutions by name, in the order in which Keras creates them."""
        return {name: unit for name, unit in self.named_modules() if isinstance(unit, Unit)}


class InceptionFeatures(FeatureNetwork):
    """Inception-V3 as the public example of DDIM uses it, with the weights of a file."""

    label = "KID"
    num_features = FEATURES

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.network = InceptionV3()
        load(self.network, file)
        self.note = f"KID is over the features of Inception-V3, with the weights of {file.name}"
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        colours = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        resized = interpolate(colours, (SIDE, SIDE), mode="bilinear", align_corners=False)
        features: Tensor = self.network(2 * resized - 1)
        return features


def load(network: InceptionV3, file: Path) -> None:
    """Load the weights of a file into a network; nothing is unpickled."""
    try:
        with file.open("rb") as opened:
            beginning = opened.read(len(HDF5))
    except OSError as error:
        raise InceptionError(f"{file} cannot be read: {(error.strerror or '').lower()}") from error
    found = _of_keras(network, file) if beginning == HDF5 else _of_torch(file)
    own = {k: v for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}
    for name, tensor in own.items():
        if name not in found:
            raise InceptionError(f"{file} lacks {name}")
        _check(file, *found[name], tensor.shape)
    network.load_state_dict({name: found[name][1] for name in own}, strict=False)


# Contents of a file: by torch's names, the entry's name in the file and its values.
Entries = dict[str, tuple[str, Tensor]]


def _of_torch(file: Path) -> Entries:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many types for invalid files
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InceptionError(f"{file} is neither HDF5 nor a state dict of torch: {why}") from error
    if not isinstance(content, Mapping):
        raise InceptionError(
            f"{file} must hold a state dict of torch, got a {type(content).__name__}"
        )
    return {name: (name, v) for name, v in content.items() if isinstance(v, Tensor)}


def _of_keras(network: InceptionV3, file: Path) -> Entries:
    """Read a file of Keras, which numbers layers in the order of their creation."""
    layers = _layers(file)
    units = network.units()
    convolutions = _numbered(file, layers, "conv2d", len(units))
    norms = _numbered(file, layers, "batch_normalization", len(units))
    found: Entries = {}
    for (unit, module), convolution, norm in zip(units.items(), convolutions, norms, strict=True):
        kernel = _entry(file, layers, convolution, "kernel")
        # Keras has height, width, channels in and out.
        shape = module.conv.weight.permute(2, 3, 1, 0).shape
        _check(file, f"{convolution}/kernel", kernel, shape)
        found[f"{unit}.conv.weight"] = f"{convolution}/kernel", kernel.permute(3, 2, 0, 1)
        for torchs, keras in NORM.items():
            # Keras's network has no scale.
            ones = keras == "gamma" and keras not in layers[norm]
            value = torch.ones(kernel.shape[-1]) if ones else _entry(file, layers, norm, keras)
            found[f"{unit}.bn.{torchs}"] = f"{norm}/{keras}", value
    return found


def _layers(file: Path) -> dict[str, dict[str, Tensor]]:
    """Read the weights of each layer, by the last part of their names."""
    try:
        h5py: Any = importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise InceptionError(
            f'{file} is a file of Keras, which needs h5py: pip install "badm[data]"'
        ) from error
    layers: dict[str, dict[str, Tensor]] = {}

    def visit(path: str, entry: Any) -> None:
        # conv2d_1/.../kernel:0, in the file of a whole model below model_weights.
        layer, *inside = path.removeprefix("model_weights/").split("/")
        if inside and isinstance(entry, h5py.Dataset) and entry.dtype.kind == "f":
            values = torch.as_tensor(entry[()])
            layers.setdefault(layer, {})[inside[-1].removesuffix(":0")] = values

    try:
        with h5py.File(file, "r") as opened:
            opened.visititems(visit)
    except OSError as error:
        why = str(error).splitlines()[0]
        raise InceptionError(f"{file} is not a valid HDF5 file: {why}") from error
    return layers


def _entry(file: Path, layers: Mapping[str, Mapping[str, Tensor]], layer: str, name: str) -> Tensor:
    if name not in layers[layer]:
        raise InceptionError(f"{file} lacks {layer}/{name}")
    return layers[layer][name]


def _check(file: Path, entry: str, value: Tensor, shape: Sequence[int]) -> None:
    if tuple(value.shape) != tuple(shape):
        raise InceptionError(
            f"{entry} of {file} must be {formatting.shape(shape)}, "
            f"got {formatting.shape(value.shape) or 'one number'}"
        )


def _numbered(file: Path, layers: Iterable[str], kind: str, count: int) -> list[str]:
    """List the layers of a type by number; the first may have none."""
    found = {}
    for layer in layers:
        match = re.fullmatch(rf"{kind}(?:_(\d+))?", layer)
        if match:
            found[int(match[1] or 0)] = layer
    if len(found) != count:
        raise InceptionError(f"{file} must have {count} layers named {kind}, got {len(found)}")
    return [found[number] for number in sorted(found)]


def _pooled(x: Tensor, how: Literal["mean", "max"] | None) -> Tensor:
    if how == "mean":
        return avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return max_pool2d(x, 3, 2) if how == "max" else x


def _row(name: str, *shapes: Shape) -> tuple[tuple[str, Shape], ...]:
    if len(shapes) == 1:
        return ((name, shapes[0]),)
    return tuple((f"{name}_{number}", shape) for number, shape in enumerate(shapes, start=1))


def _fives(pool: int) -> tuple[Branch, ...]:
    return (
        Branch(_row("branch1x1", Shape(64))),
        Branch(_row("branch5x5", Shape(48), Shape(64, (5, 5)))),
        Branch(_row("branch3x3dbl", Shape(64), Shape(96, (3, 3)), Shape(96, (3, 3)))),
        Branch(_row("branch_pool", Shape(pool)), pool="mean"),
    )


def _sevens(width: int) -> tuple[Branch, ...]:
    wide, high = Shape(width, (1, 7)), Shape(width, (7, 1))
    last_wide, last_high = Shape(192, (1, 7)), Shape(192, (7, 1))
    return (
        Branch(_row("branch1x1", Shape(192))),
        Branch(_row("branch7x7", Shape(width), wide, last_high)),
        Branch(_row("branch7x7dbl", Shape(width), high, wide, high, last_wide)),
        Branch(_row("branch_pool", Shape(192)), pool="mean"),
    )


def _forks() -> tuple[Branch, ...]:
    wide, high = Shape(384, (1, 3)), Shape(384, (3, 1))
    return (
        Branch(_row("branch1x1", Shape(320))),
        Branch((("branch3x3_1", Shape(384)),), (("branch3x3_2a", wide), ("branch3x3_2b", high))),
        Branch(
            (("branch3x3dbl_1", Shape(448)), ("branch3x3dbl_2", Shape(384, (3, 3)))),
            (("branch3x3dbl_3a", wide), ("branch3x3dbl_3b", high)),
        ),
        Branch(_row("branch_pool", Shape(192)), pool="mean"),
    )


BLOCKS: dict[str, tuple[Branch, ...]] = {
    "Mixed_5b": _fives(32),
    "Mixed_5c": _fives(64),
    "Mixed_5d": _fives(64),
    "Mixed_6a": (
        Branch(_row("branch3x3", Shape(384, (3, 3), 2))),
        Branch(_row("branch3x3dbl", Shape(64), Shape(96, (3, 3)), Shape(96, (3, 3), 2))),
        Branch(pool="max"),
    ),
    "Mixed_6b": _sevens(128),
    "Mixed_6c": _sevens(160),
    "Mixed_6d": _sevens(160),
    "Mixed_6e": _sevens(192),
    "Mixed_7a": (
        Branch(_row("branch3x3", Shape(192), Shape(320, (3, 3), 2))),
        Branch(
            _row(
                "branch7x7x3",
                Shape(192),
                Shape(192, (1, 7)),
                Shape(192, (7, 1)),
                Shape(192, (3, 3), 2),
            )
        ),
        Branch(pool="max"),
    ),
    "Mixed_7b": _forks(),
    "Mixed_7c": _forks(),
}
