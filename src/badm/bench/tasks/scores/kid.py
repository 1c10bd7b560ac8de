"""KID, the kernel inception distance between generated and real images.

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
BATCH = 64  # as in the public example


def kid(real: Tensor, fake: Tensor, batch_size: int = BATCH) -> float:
    """Compute the KID of features ``(N, d)`` and ``(M, d)``: lower is better.

    As in the public example, it is the mean over pairs of batches of 64, one of each set, in the
    given order; an incomplete last batch and the surplus of the larger set are left out. Smaller
    sets are one batch each. The estimate is unbiased: for samples of the same distribution its mean
    is zero, so it can be slightly negative. Features that are not finite give NaN.

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
    # In double precision: the difference of cubes would lose half the digits of single precision.
    # On the CPU: not every device has it.
    pairs = zip(*(torch.split(x.cpu().double(), size) for x in (real, fake)), strict=False)
    whole = [(r, f) for r, f in pairs if len(r) == len(f) == size]
    return math.fsum(_batch_kid(r, f) for r, f in whole) / len(whole)


def label() -> str:
    """Return the name of the score with the features that :func:`feature_network` has.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_INCEPTION=""):
    ...     label()
    'KID (classifier features)'
    """
    return INCEPTION_LABEL if _inception_file() else ClassifierFeatures.label


def version() -> str:
    """Return the version of the features: part of a task's version, so that runs are not mixed."""
    file = _inception_file()
    if file is None:
        return f"classifier-{hashlib.sha256(repr(features.RECIPE).encode()).hexdigest()[:8]}"
    try:
        stat = file.stat()
    except OSError:  # reading the file will raise
        return "inception"
    return f"inception-{_content(file, stat.st_size, stat.st_mtime_ns)}"


def feature_network(images: Tensor, labels: Tensor, classes: int) -> FeatureNetwork:
    """Load Inception-V3 if there are weights, otherwise a classifier of those images.

    Images are ``(N, C, H, W)``, ``uint8`` or from 0 to 1; labels go from 0 to ``classes - 1``. The
    classifier is trained once and then cached (``BADM_CACHE``). Global generators are not changed.
    """
    with torch.random.fork_rng(devices=[]):  # a network draws weights before it loads others
        file = _inception_file()
        if file is not None:
            from badm.bench.models.inception import InceptionFeatures

            return InceptionFeatures(file)
        return _classifier(images, labels, classes)


def _classifier(images: Tensor, labels: Tensor, classes: int) -> ClassifierFeatures:
    """Load the classifier from the cache, or train it."""
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
        pass  # it will be trained again
    return network


def _batch_kid(real: Tensor, fake: Tensor) -> float:
    """Compute the KID of two batches of equal size."""
    from torchmetrics.image.kid import KernelInceptionDistance

    # The subset has all features, in an order that torchmetrics draws.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", UserWarning)  # about features kept in memory
        torch.default_generator.manual_seed(0)
        metric = KernelInceptionDistance(nn.Identity(), subsets=1, subset_size=len(real))
        metric.set_dtype(torch.float64)
        metric.update(real, real=True)
        metric.update(fake, real=False)
        mean, _ = metric.compute()
    return float(mean)


def _inception_file() -> Path | None:
    """The only place that reads ``BADM_INCEPTION``."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


@lru_cache(maxsize=4)
def _content(file: Path, size: int, modified: int) -> str:
    """Compute the checksum of a file, again only if its size or date has changed."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _key(images: Tensor, labels: Tensor, classes: int) -> str:
    """Hash everything that the classifier depends on."""
    about = [features.RECIPE, torch.__version__, classes, str(images.dtype), [*images.shape]]
    digest = hashlib.sha256(json.dumps(about).encode())
    for tensor in (images, labels.long()):
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:32]


def _load(kept: Path, channels: int, classes: int) -> ClassifierFeatures | None:
    """Load from the cache, or return ``None`` if the file is missing or damaged."""
    network = ClassifierFeatures(channels, classes)
    try:
        network.load_state_dict(files.load_tensors(kept))
    except Exception:  # torch raises errors of many types for damaged files
        return None
    return network.eval().requires_grad_(False)
