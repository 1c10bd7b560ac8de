"""Sparse products on a device, which scipy knows nothing of."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from badm.bench.models import sparse_input
from badm.bench.models.sparse_input import SparseInput, product_by_entries, sparse_product


def matrix(rows: int, columns: int, seed: int = 0) -> csr_array:
    random = np.random.default_rng(seed)
    dense = random.normal(size=(rows, columns)) * (random.random((rows, columns)) < 0.3)
    return csr_array(dense.astype(np.float32))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 4), (40, 90)])
def test_a_product_by_entries_is_that_of_scipy(rows: int, columns: int) -> None:
    x, dense = matrix(rows, columns), torch.randn(columns, 5)
    torch.testing.assert_close(product_by_entries(x, dense), sparse_product(x, dense))
    transposed = product_by_entries(x.T, torch.ones(rows, 1))
    np.testing.assert_allclose(transposed[:, 0].numpy(), x.sum(0), rtol=1e-5, atol=1e-6)


def test_the_layer_computes_the_same_by_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = matrix(30, 20), SparseInput(20, 3)

    def outputs_and_gradients() -> list[torch.Tensor]:
        layer.zero_grad()
        torch.manual_seed(0)
        out = layer(x)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]

    by_scipy = outputs_and_gradients()
    monkeypatch.setattr(sparse_input, "_times", product_by_entries)
    for ours, theirs in zip(outputs_and_gradients(), by_scipy, strict=True):
        torch.testing.assert_close(ours, theirs)
