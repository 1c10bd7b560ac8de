"""Datasets: what there is, where the files are, whether they are intact, and how to fetch them.

>>> from badm.bench.data import find
>>> dataset = find("mnist")
>>> dataset.title, dataset.folder
('MNIST', 'mnist')
"""

from badm.bench.data.archives import ArchiveError, unpack
from badm.bench.data.availability import path, status
from badm.bench.data.catalogue import DATASETS, find
from badm.bench.data.checksums import verified_against, verify
from badm.bench.data.dataset import (
    Dataset,
    FetchFailed,
    FileProblem,
    Files,
    MissingData,
    ProgressCallback,
)
from badm.bench.data.fetching import fetch
from badm.bench.data.folder import root
from badm.bench.data.optional_imports import MissingLibrary

__all__ = [
    "DATASETS",
    "ArchiveError",
    "Dataset",
    "FetchFailed",
    "FileProblem",
    "Files",
    "MissingData",
    "MissingLibrary",
    "ProgressCallback",
    "fetch",
    "find",
    "path",
    "root",
    "status",
    "unpack",
    "verified_against",
    "verify",
]
