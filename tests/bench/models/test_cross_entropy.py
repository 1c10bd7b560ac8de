"""Cross entropy over many classes against that of torch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from badm.bench.models.cross_entropy import summed_cross_entropy


def both(logits: Tensor, truth: Tensor, scale: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """The losses and their gradients: ours, and torch's."""
    found = []
    for loss_of in (summed_cross_entropy, lambda x, y: cross_entropy(x, y, reduction="sum")):
        leaf = logits.clone().requires_grad_()
        loss = loss_of(leaf, truth)
        (scale * loss).backward()
        assert leaf.grad is not None
        found.append((loss.detach(), leaf.grad))
    return found


@pytest.mark.parametrize("spread", [0.1, 3.0, 200.0])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_loss_and_gradient_are_those_of_torch(spread: float, scale: float) -> None:
    torch.manual_seed(0)
    logits, truth = spread * torch.randn(7, 50, dtype=torch.float64), torch.randint(50, (7,))
    (loss, gradient), (theirs, their_gradient) = both(logits, truth, scale)
    torch.testing.assert_close(loss, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-12, atol=1e-12)


def test_a_truth_that_is_given_no_probability_at_all_has_a_finite_loss() -> None:
    logits = torch.tensor([[0.0, 1000.0]])
    (loss, gradient), (theirs, their_gradient) = both(logits, torch.tensor([0]))
    assert loss == theirs == 1000
    assert torch.equal(gradient, their_gradient)


def test_nothing_to_guess_costs_nothing() -> None:
    (loss, gradient), _ = both(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert loss == 0
    assert gradient.shape == (0, 5)


def test_logits_that_are_not_finite_are_not_hidden() -> None:
    logits = torch.tensor([[0.0, float("nan")], [1.0, 2.0]])
    assert summed_cross_entropy(logits, torch.tensor([0, 1])).isnan()


def test_the_logits_are_left_as_they_are() -> None:
    logits = torch.randn(3, 4, requires_grad=True)
    before = logits.detach().clone()
    loss = summed_cross_entropy(logits, torch.tensor([0, 1, 2]))
    loss.backward(retain_graph=True)
    first = logits.grad
    logits.grad = None
    loss.backward()
    assert torch.equal(logits, before)
    assert first is not None
    assert torch.equal(first, logits.grad)
