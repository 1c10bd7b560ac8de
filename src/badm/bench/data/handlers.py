"""How each dataset is fetched and its files are checked, by its name in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from badm.bench.data import (
    airplanes,
    bbbp,
    flowers102,
    geometric,
    graph_facts,
    hub,
    idx,
    image_facts,
    image_sources,
    reviews,
)
from badm.bench.data.dataset import FileProblem, ProgressCallback

# Called as ``fetch(folder, report)``: downloads the files into an empty folder.
FETCH: dict[str, Callable[[Path, ProgressCallback | None], None]] = {
    **{name: partial(geometric.fetch, name) for name in graph_facts.GRAPHS},
    "bbbp": bbbp.fetch,
    "mnist": partial(hub.fetch_idx, "ylecun/mnist"),
    "fashion-mnist": partial(hub.fetch_idx, "zalando-datasets/fashion_mnist"),
    "cifar10": image_sources.fetch_cifar10,
    "svhn": image_sources.fetch_svhn,
    "cmaterdb": image_sources.fetch_cmaterdb,
    "tf-flowers": image_sources.fetch_flowers,
    "deepweeds": image_sources.fetch_deepweeds,
    "caltech-airplanes": airplanes.fetch,
    "flowers102": image_sources.fetch_flowers102,
    "imdb": reviews.fetch,
    "camelyon": image_sources.fetch_camelyon,
}

# Called as ``check(folder)``: reads the files and compares them with recorded facts.
CHECK: dict[str, Callable[[Path], list[FileProblem]]] = {
    **{name: partial(graph_facts.check, name) for name in graph_facts.GRAPHS},
    "bbbp": bbbp.check,
    "mnist": partial(idx.check, idx.MNIST),
    "fashion-mnist": partial(idx.check, idx.FASHION_MNIST),
    "cifar10": partial(image_facts.check, "cifar10"),
    "svhn": partial(image_facts.check, "svhn"),
    "cmaterdb": partial(image_facts.check, "cmaterdb"),
    "tf-flowers": partial(image_facts.check, "tf-flowers"),
    "deepweeds": partial(image_facts.check, "deepweeds"),
    "caltech-airplanes": airplanes.check,
    "flowers102": flowers102.check,
    "imdb": reviews.check,
    "camelyon": image_facts.check_camelyon,
}
