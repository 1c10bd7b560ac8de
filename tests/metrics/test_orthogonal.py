"""Orthogonalisation: where singular values end, and that P is the positive definite factor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from badm.metrics import orthogonal
from badm.metrics.orthogonal import STEPS, STEPS_WHITENED, Steps, orthogonalize, polar_factor
from tests.helpers.support import normal

# The band that orthogonal.py states in two digits, [0.68, 1.32], for what starts above 0.002.
LOW, HIGH = 0.675, 1.325
ROUNDING = {torch.float32: 2e-3, torch.float64: 1e-6}

DTYPES = [torch.float32, torch.float64]


def with_singular_values(values: Tensor, rows: int, cols: int, seed: int = 0) -> Tensor:
    u = torch.linalg.qr(normal((rows, rows), seed)).Q[:, : len(values)]
    v = torch.linalg.qr(normal((cols, cols), seed + 1)).Q[:, : len(values)]
    return u * values @ v.T


def conditioned(rows: int, cols: int, condition: float) -> Tensor:
    count = min(rows, cols)
    values = torch.logspace(0, -1, count, base=condition, dtype=torch.float64)
    return with_singular_values(values, rows, cols)


def assert_in_band(x: Tensor) -> None:
    values = torch.linalg.svdvals(x.double())
    slack = ROUNDING[x.dtype]
    assert LOW - slack <= values.min(), values
    assert values.max() <= HIGH + slack, values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 2), (16, 16), (8, 100), (100, 8), (30, 50), (64, 72)])
def test_gaussian_matrices_end_in_the_band(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for seed in range(5):
        x = normal(shape, seed, dtype)
        if shape[0] == shape[1]:
            # A square Gaussian matrix may be singular to any degree; this one is not.
            x = x + 2 * shape[0] ** 0.5 * torch.eye(shape[0], dtype=dtype)
        assert_in_band(orthogonalize(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(24, 24), (12, 60), (60, 12), (20, 30)])
@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0])
def test_ill_conditioned_matrices_end_in_the_band(
    shape: tuple[int, int], condition: float, dtype: torch.dtype
) -> None:
    """Within the floor: the largest value is scaled to at least (1/rows)^¼ of 1."""
    x = conditioned(*shape, condition).to(dtype)
    assert_in_band(orthogonalize(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(24, 24), (12, 60), (60, 12), (20, 30)])
@pytest.mark.parametrize("condition", [1.0, 10.0, 40.0])
def test_three_steps_are_enough_for_a_matrix_that_is_nearly_white(
    shape: tuple[int, int], condition: float, dtype: torch.dtype
) -> None:
    x = conditioned(*shape, condition).to(dtype)
    assert_in_band(orthogonalize(x, STEPS_WHITENED))


@pytest.mark.parametrize("steps", [STEPS, STEPS_WHITENED])
def test_every_quintic_is_a_positive_factor(steps: Steps) -> None:
    """Without a real root of ``a + bt + ct²`` the product of the factors is positive definite."""
    for a, b, c in steps:
        assert a > 0
        assert b * b < 4 * a * c


@pytest.mark.parametrize("shape", [(24, 24), (12, 60), (60, 12)])
def test_singular_vectors_are_kept(shape: tuple[int, int]) -> None:
    x = conditioned(*shape, 50.0)
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    inside = u.T @ orthogonalize(x) @ vt.T
    torch.testing.assert_close(inside, inside.diagonal().diag(), rtol=0, atol=1e-9)


def test_equal_singular_values_stay_equal() -> None:
    x = with_singular_values(torch.full((6,), 3.0, dtype=torch.float64), 6, 9)
    values = torch.linalg.svdvals(orthogonalize(x))
    torch.testing.assert_close(values, values[:1].expand(6), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_rank_deficient_matrix_the_range_is_lifted_and_the_rest_stays_zero(
    dtype: torch.dtype,
) -> None:
    values = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    for rows, cols in ((10, 10), (8, 40), (40, 8)):
        x = with_singular_values(values, rows, cols).to(dtype)
        found = torch.linalg.svdvals(orthogonalize(x).double())
        slack = ROUNDING[dtype]
        assert LOW - slack <= found[2] <= found[0] <= HIGH + slack
        # Rounding noise is lifted too, by the product of the first coefficients.
        assert found[3] < 1e4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4, 4), (3, 20), (20, 3)])
def test_zero_gives_zero(shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert torch.equal(
        orthogonalize(torch.zeros(shape, dtype=dtype)), torch.zeros(shape, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-10, 1e10, 1e18, 1e30])
@pytest.mark.parametrize("shape", [(6, 8), (4, 40), (40, 4)])
def test_size_does_not_matter(shape: tuple[int, int], size: float, dtype: torch.dtype) -> None:
    x = conditioned(*shape, 10.0).to(dtype)
    torch.testing.assert_close(orthogonalize(size * x), orthogonalize(x), rtol=1e-3, atol=1e-4)


def newton_schulz(x: Tensor) -> Tensor:
    """The five steps of Muon, on u/‖u‖_F."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(32, 32), (64, 64), (16, 128), (128, 48), (96, 128)])
def test_small_singular_values_are_lifted_no_less_than_by_newton_schulz(
    shape: tuple[int, int],
) -> None:
    for seed in range(10):
        x = normal(shape, seed)
        ours = torch.linalg.svdvals(orthogonalize(x))
        theirs = torch.linalg.svdvals(newton_schulz(x))
        # What has reached the band is lifted enough: only what is below it compares.
        assert ours.min() >= min(LOW, theirs.min())


@pytest.mark.parametrize("condition", [1e3, 1e4, 1e5, 1e6])
def test_an_ill_conditioned_matrix_comes_as_near_to_orthogonal_as_by_newton_schulz(
    condition: float,
) -> None:
    """A well conditioned one does not: there the narrower band of Newton–Schulz is what counts."""
    x = conditioned(64, 80, condition)
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    ours, theirs = ((f(x) - u @ vt).norm() for f in (orthogonalize, newton_schulz))
    assert ours <= 1.05 * theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7), (4, 30), (30, 4)])
def test_a_stack_is_its_matrices_one_by_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Also where one of them is zero, huge or not a number: it keeps to itself."""
    stack = torch.stack([normal(shape, seed, dtype) for seed in range(4)])
    stack[1] = 0
    stack[2] *= 1e10
    stack[3, 0, 0] = float("nan")
    found = orthogonalize(stack)
    for one, all_at_once in zip(stack[:3], found[:3], strict=True):
        torch.testing.assert_close(all_at_once, orthogonalize(one), rtol=1e-5, atol=1e-6)
    assert found[3].isnan().any()
    assert orthogonalize(stack.reshape(2, 2, *shape)).shape == (2, 2, *shape)


@pytest.mark.parametrize("steps", [STEPS, STEPS_WHITENED])
@pytest.mark.parametrize("shape", [(5, 5), (5, 7), (4, 40)])
def test_polar_factor_is_positive_definite_and_orthogonalises(
    shape: tuple[int, int], steps: Steps
) -> None:
    x = 3 * conditioned(*shape, 30.0)
    P = polar_factor(x, steps)
    torch.testing.assert_close(P, P.T, rtol=1e-9, atol=1e-9)
    assert torch.linalg.eigvalsh(P).min() > 0
    torch.testing.assert_close(P @ x, orthogonalize(x, steps), rtol=1e-9, atol=1e-9)


def test_polar_factor_of_zero_is_finite() -> None:
    assert polar_factor(torch.zeros(3, 5)).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("condition", [1.0, 100.0, 1e4])
def test_the_direct_and_the_gram_form_agree(
    condition: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = conditioned(16, 64, condition).to(dtype)
    results = []
    for aspect in (1.0, 1e9):
        monkeypatch.setattr(orthogonal, "GRAM_ASPECT", aspect)
        results.append(orthogonalize(x))
    tolerance = 1e-9 if dtype == torch.float64 else 5e-3
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.fixture
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA; a CPU without instructions for it emulates it."""
    monkeypatch.setattr(orthogonal, "_work_dtype", lambda x: torch.bfloat16)


@pytest.mark.usefixtures("in_bfloat16")
@pytest.mark.parametrize("steps", [STEPS, STEPS_WHITENED])
@pytest.mark.parametrize("shape", [(96, 96), (128, 128), (64, 288), (288, 64)])
def test_in_bfloat16_no_singular_value_leaves_the_band_upwards(
    shape: tuple[int, int], steps: Steps
) -> None:
    for seed in range(5):
        x = normal(shape, seed, torch.float32)
        assert torch.linalg.svdvals(orthogonalize(x, steps)).max() <= HIGH + 0.01


@pytest.mark.usefixtures("in_bfloat16")
@pytest.mark.parametrize("shape", [(128, 128), (64, 288), (288, 64)])
def test_in_bfloat16_a_matrix_of_condition_ten_ends_near_the_band(shape: tuple[int, int]) -> None:
    values = torch.linalg.svdvals(orthogonalize(conditioned(*shape, 10.0).float()))
    assert 0.63 <= values.min() <= values.max() <= HIGH + 0.01


@pytest.mark.parametrize(
    ("precision", "native", "side", "dtype"),
    [
        ("bf16", True, 128, torch.bfloat16),  # set_float32_matmul_precision("medium")
        ("bf16", True, 127, torch.float32),
        ("bf16", False, 128, torch.float32),
        ("ieee", True, 128, torch.float32),
        ("none", True, 128, torch.float32),  # the default
    ],
)
def test_a_cpu_multiplies_in_bfloat16_only_where_the_user_lets_it_and_it_gains(
    precision: str, native: bool, side: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        pytest.skip("torch before 2.9 does not tell")
    monkeypatch.setattr(orthogonal, "_NATIVE_BFLOAT16", native)
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = precision
        assert orthogonal._work_dtype(torch.zeros(side, 200)) == dtype
    finally:
        matmul.fp32_precision = before


def test_half_precision_is_orthogonalised_in_single() -> None:
    x = conditioned(16, 24, 50.0)
    for dtype in (torch.bfloat16, torch.float16):
        result = orthogonalize(x.to(dtype))
        assert result.dtype == dtype
        expected = orthogonalize(x.to(dtype).float()).to(dtype)
        assert torch.equal(result, expected)
