"""Real data: what there is, where it is, whether it is sound, and how to get it.

>>> from badm.bench.data import find
>>> dataset = find("mnist")
>>> dataset.title, dataset.tasks[-2:]
('MNIST', ('mnist-mlp', 'mnist-mlp-sigmoid'))
"""

from badm.bench.data.archives import ArchiveError, unpack
from badm.bench.data.catalogue import DATASETS, find
from badm.bench.data.checksums import basis, verify
from badm.bench.data.dataset import Dataset, FetchFailed, Files, MissingData, Problem, Report
from badm.bench.data.fetching import fetch
from badm.bench.data.folder import root
from badm.bench.data.libraries import MissingLibrary
from badm.bench.data.presence import absence, path, status

__all__ = [
    "DATASETS",
    "ArchiveError",
    "Dataset",
    "FetchFailed",
    "Files",
    "MissingData",
    "MissingLibrary",
    "Problem",
    "Report",
    "absence",
    "basis",
    "fetch",
    "find",
    "path",
    "root",
    "status",
    "unpack",
    "verify",
]
