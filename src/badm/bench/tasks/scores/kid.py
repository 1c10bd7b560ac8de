"""KID, the kernel inception distance: how far made images are from real ones.

It is the unbiased estimate of the squared maximum mean discrepancy between the features of both,
with the kernel (x·y/d + 1)³. Features are those of Inception-V3 where ``BADM_INCEPTION`` names a
file with its weights; otherwise of a small classifier of the same images, and then the distance is
called "KID (classifier features)" wherever it is shown.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from badm.bench import errors, files
from badm.bench.files import cache_folder
from badm.bench.models import features
from badm.bench.models.features import ClassifierFeatures, FeatureNetwork

__all__ = ["FeatureNetwork", "feature_network", "kid", "label", "version"]

VARIABLE = "BADM_INCEPTION"
INCEPTION_LABEL = "KID"
BATCH = 64  # of the public example


def kid(real: Tensor, fake: Tensor, batch_size: int = BATCH) -> float:
    """The distance of two sets of features ``(N, d)`` and ``(M, d)``: lower is better.

    As in the public example, the mean over pairs of batches of 64, one of each set, in the order
    given; a last batch that is not whole is left out, and so is what one set has more than the
    other. Sets of fewer features are one batch each. The estimate is unbiased: for two sets of the
    same distribution it is zero in the mean, so it can be a little less. Features that are not
    finite give NaN.

    >>> real = torch.tensor([[1.0], [0.0]])
    >>> kid(real, torch.tensor([[0.0], [1.0]]))  # k(1, 0) + k(0, 1) - half the sum of all four
    -3.5
    """
    count = min(len(real), len(fake))
    if real.ndim != 2 or fake.ndim != 2 or real.shape[1] != fake.shape[1]:
        raise ValueError(
            "real and fake must be features (N, d) and (M, d), got "
            f"{tuple(real.shape)} and {tuple(fake.shape)}"
        )
    if count < 2 or batch_size < 2:
        raise ValueError(
            f"KID needs two features of each kind and batches of two, got {len(real)} real, "
            f"{len(fake)} fake and batches of {batch_size}"
        )
    if not (real.isfinite().all() and fake.isfinite().all()):
        return math.nan
    size = min(batch_size, count)
    # In double: cubes of single precision would leave half of its digits after the difference.
    # On the CPU: not every device has it.
    pairs = zip(*(torch.split(x.cpu().double(), size) for x in (real, fake)), strict=False)
    whole = [(r, f) for r, f in pairs if len(r) == len(f) == size]
    return math.fsum(_batch_kid(r, f) for r, f in whole) / len(whole)


def label() -> str:
    """What the distance is called with the features that :func:`feature_network` would give.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_INCEPTION=""):
    ...     label()
    'KID (classifier features)'
    """
    return INCEPTION_LABEL if _inception_file() else ClassifierFeatures.label


def version() -> str:
    """Of the features: part of a task's version, so that no run is taken for one with others."""
    file = _inception_file()
    if file is None:
        return f"classifier-{hashlib.sha256(repr(features.RECIPE).encode()).hexdigest()[:8]}"
    try:
        stat = file.stat()
    except OSError:  # the error belongs where the file is read
        return "inception"
    return f"inception-{_content(file, stat.st_size, stat.st_mtime_ns)}"


def feature_network(images: Tensor, labels: Tensor, classes: int) -> FeatureNetwork:
    """Inception-V3 if there are weights, otherwise a classifier of those images.

    Images are ``(N, C, H, W)``, in bytes or from 0 to 1; labels go from 0 to ``classes - 1``. The
    classifier is trained once and then kept in the cache (``BADM_CACHE``). Global generators stay
    as they are.
    """
    with torch.random.fork_rng(devices=[]):  # a network draws its weights before it reads others
        file = _inception_file()
        if file is not None:
            from badm.bench.models.inception import InceptionFeatures

            return InceptionFeatures(file)
        return _classifier(images, labels, classes)


def _classifier(images: Tensor, labels: Tensor, classes: int) -> ClassifierFeatures:
    """From the cache, or trained."""
    if images.ndim != 4 or len(labels) != len(images) or len(images) < 2:
        raise ValueError(
            "images must be (N, C, H, W), two at least, with a label each, got "
            f"{tuple(images.shape)} and {len(labels)} labels"
        )
    kept = cache_folder() / f"features-{_key(images, labels, classes)}.pt"
    found = _load(kept, images.shape[1], classes)
    if found is not None:
        return found
    network = features.train_classifier(images, labels, classes)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.save_tensors(kept, network.state_dict())
    except (OSError, errors.StoreError):
        pass  # to be trained again is all that comes of it
    return network


def _batch_kid(real: Tensor, fake: Tensor) -> float:
    """Of two batches of one size."""
    from torchmetrics.image.kid import KernelInceptionDistance

    # A sub-set of all features is all of them in another order, which torchmetrics draws.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # that features are kept in memory
        torch.default_generator.manual_seed(0)
        metric = KernelInceptionDistance(nn.Identity(), subsets=1, subset_size=len(real))
        metric.set_dtype(torch.float64)
        metric.update(real, real=True)
        metric.update(fake, real=False)
        mean, _ = metric.compute()
    return float(mean)


def _inception_file() -> Path | None:
    """The only place that looks at the variable."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


@lru_cache(maxsize=4)
def _content(file: Path, size: int, modified: int) -> str:
    """The checksum of a file, read anew when its size or date has changed."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _key(images: Tensor, labels: Tensor, classes: int) -> str:
    """Of all that the classifier depends on."""
    about = [features.RECIPE, torch.__version__, classes, str(images.dtype), [*images.shape]]
    digest = hashlib.sha256(json.dumps(about).encode())
    for tensor in (images, labels.long()):
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:32]


def _load(kept: Path, channels: int, classes: int) -> ClassifierFeatures | None:
    """What is in the cache, if it is there and whole."""
    network = ClassifierFeatures(channels, classes)
    try:
        network.load_state_dict(files.load_tensors(kept))
    except Exception:  # not there, damaged, or of another kind: whatever torch makes of that
        return None
    return network.eval().requires_grad_(False)
