"""The suite of the speed protocol: every kind of task of the paper, at sizes two cores can repeat.

``badm compare suite --protocol speed`` runs it. Each budget, in steps, is what the baseline gets: a
run of it takes some ten to thirty seconds on one core.
"""

from __future__ import annotations

NAME = "suite"

BUDGETS = {
    "digits": 200,
    "node-cora-gnn": 500,
    "node-citeseer-dnn": 600,
    "bbbp": 340,
    "image-cifar10": 200,
    "image-svhn": 300,
    "detection": 200,
    "cgan-fashion": 1000,
    "ddim-flowers": 250,
    "text-imdb": 700,
    "mlm-pretrain": 500,
    "char-imdb": 400,
}
