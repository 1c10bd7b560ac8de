"""Replicas that meet: real processes on gloo, against the same arithmetic in one process."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import badm
from badm.distributed.consensus import Consensus, RankMismatchError
from badm.distributed.ranks import RankLostError
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.ranks import on_ranks
from tests.helpers.support import normal
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.distributed

SHAPES = ((3, 2), (4,), ())


def start() -> list[nn.Parameter]:
    return [nn.Parameter(normal(shape, seed)) for seed, shape in enumerate(SHAPES)]


def gradient(p: Tensor, i: int, rank: int, step: int) -> Tensor | None:
    """Of a quadratic of this rank, with noise. One parameter has a gradient on odd ranks alone."""
    if i == 1 and rank % 2 == 0:
        return None
    curvature = 1 + rank + i
    noise = normal(p.shape, 1000 * step + 10 * rank + i, scale=0.1)
    return curvature * (p.detach() - rank) + noise


def inner_step(
    optimizer: torch.optim.Optimizer,
    params: list[Any],
    rank: int,
    step: int,
    dual: list[Tensor] | None = None,
) -> list[Tensor]:
    """A step; the gradients before the dual, if any, was added to them."""
    for i, p in enumerate(params):
        p.grad = gradient(p, i, rank, step)
    own = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in params]
    if dual is not None:
        for p, g, u in zip(params, own, dual, strict=True):
            p.grad = None if p.grad is None and not u.any() else g + u
    optimizer.step()
    return own


def make_inner(name: str, params: list[Any]) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(params, lr=0.05)
    return torch.optim.AdamW(params, lr=0.02, weight_decay=0.1)


def train(inner_name: str, steps: int, options: dict[str, Any]) -> Any:
    """Train this rank; its parameters, its dual and the global point."""
    rank = int(os.environ["RANK"])
    params = start()
    with torch.no_grad():
        for p in params:
            p.mul_(1 + rank)  # all begin where the first rank does
    inner = make_inner(inner_name, params)
    options = {"weight": 1.0 + rank, **options}
    consensus = Consensus(params, inner, **options)
    for step in range(steps):
        inner_step(inner, params, rank, step)
    consensus.meet()
    return [p.detach() for p in params], consensus.u, consensus.w


def flat(tensors: list[Any]) -> Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors])


def simulate(world_size: int, inner_name: str, steps: int, options: dict[str, Any]) -> Any:
    """The equations of the module's docstring, rank by rank in one process."""
    every, lr, beta = options["every"], options.get("lr", 1.0), options.get("beta", 0.5)
    eta, overlap = options.get("eta", 1 - beta), options.get("overlap", 0)
    alpha = torch.arange(1.0, world_size + 1, dtype=torch.float64)
    alpha /= alpha.sum()
    replicas = [start() for _ in range(world_size)]
    inner = [make_inner(inner_name, params) for params in replicas]
    w = flat(replicas[0])
    m, u = torch.zeros_like(w), [torch.zeros_like(w) for _ in replicas]
    dual = options.get("mode") == "dual"

    def put(params: list[Any], vector: Tensor) -> None:
        with torch.no_grad():
            for p, part in zip(params, vector.split([p.numel() for p in params]), strict=True):
                p.copy_(part.view(p.shape))

    def mean_of(vectors: list[Tensor]) -> Any:
        return sum(a * x for a, x in zip(alpha, vectors, strict=True))

    def apply(displacements: list[Tensor], gradients: list[Tensor]) -> None:
        nonlocal w, m
        mean = mean_of(displacements)
        since = [flat(params) - w - d for params, d in zip(replicas, displacements, strict=True)]
        for s, g in enumerate(gradients):
            u[s] = u[s] + eta * (mean_of(gradients) - g - u[s])
        new = m + (1 - beta) * (-mean - m)
        w, m = w - lr * (2 * new - m), new
        for params, extra in zip(replicas, since, strict=True):
            put(params, w + extra)

    def parting() -> tuple[list[Tensor], list[Tensor]]:
        """Return the displacements and mean gradients of the ranks, and reset the means."""
        nonlocal count, sums
        means = [total / count for total in sums]
        count, sums = 0, [torch.zeros_like(w) for _ in replicas]
        return [flat(params) - w for params in replicas], means

    pending: tuple[int, Any] | None = None
    count, sums = 0, [torch.zeros_like(w) for _ in replicas]
    for step in range(steps):
        for s, params in enumerate(replicas):
            parts = u[s].split([p.numel() for p in params])
            shaped = [x.view(p.shape) for x, p in zip(parts, params, strict=True)]
            sums[s] += flat(inner_step(inner[s], params, s, step, shaped if dual else None))
        count += 1
        if pending is not None and step == pending[0]:
            apply(*pending[1])
            pending = None
        if count == every:
            pending = (step + overlap, parting())
            if overlap == 0:
                apply(*pending[1])
                pending = None
    if pending is not None:
        apply(*pending[1])
    if count:
        apply(*parting())
    return w, u


RECIPES: dict[str, dict[str, Any]] = {
    "averaging": {"every": 4},
    "outer": {"every": 3, "lr": 2.0, "beta": 0.8},
    "every-step": {"every": 1, "lr": 0.5, "beta": 0.8},
    "dual": {"every": 3, "mode": "dual", "lr": 2.0},
    "dual-eta": {"every": 5, "mode": "dual", "lr": 1.0, "beta": 0.0, "eta": 0.7},
    "overlap": {"every": 4, "overlap": 2, "lr": 2.0, "beta": 0.8},
    "dual-overlap": {"every": 4, "overlap": 3, "mode": "dual", "lr": 2.0, "beta": 0.3},
}


def train_all(steps: int) -> list[Any]:
    return [
        train(inner, steps, options) for options in RECIPES.values() for inner in ("sgd", "adamw")
    ]


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_do_what_the_equations_say(world_size: int) -> None:
    steps = 22  # which no recipe divides: the last meeting is for what is left over
    results = on_ranks(world_size, train_all, steps)
    runs = [(options, inner) for options in RECIPES.values() for inner in ("sgd", "adamw")]
    for number, (options, inner) in enumerate(runs):
        w, u = simulate(world_size, inner, steps, options)
        for rank, result in enumerate(results):
            params, dual, point = result[number]
            torch.testing.assert_close(point, w, rtol=0, atol=1e-12)
            if not options.get("overlap"):
                assert torch.equal(flat(params), point)
            if options.get("mode") == "dual":
                torch.testing.assert_close(dual, u[rank], rtol=0, atol=1e-12)
            assert torch.equal(point, results[0][number][2])  # to the last bit


def train_in_both_modes(steps: int, options: dict[str, Any]) -> list[Any]:
    return [train("sgd", steps, {**options, "mode": mode}) for mode in ("outer", "dual")]


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_inner_step_of_sgd_is_algorithm_1_with_a_sub_batch_per_rank(world_size: int) -> None:
    rho, sigma, steps = 4.0, 16.0, 60
    gamma = 1 / (rho + sigma)  # the inner step, which is that of ``make_inner``
    options = {"every": 1, "lr": 1 / (sigma * gamma), "beta": rho / (rho + sigma)}
    results = on_ranks(world_size, train_in_both_modes, steps, options)

    params = [p.detach() for p in start()]
    alpha = [(1 + s) / sum(range(1, world_size + 1)) for s in range(world_size)]
    oracle = Algorithm1(params, world_size, rho, sigma, alpha)
    for step in range(steps):
        rows = [
            [
                torch.zeros_like(p) if (g := gradient(p, i, s, step)) is None else g
                for i, p in enumerate(params)
            ]
            for s in range(world_size)
        ]
        oracle.step(rows)
    m = -sum(a * flat(pi) for a, pi in zip(alpha, oracle.duals, strict=True))
    for rank, (outer, dual) in enumerate(results):
        torch.testing.assert_close(flat(outer[0]), flat(params), rtol=0, atol=1e-12)
        torch.testing.assert_close(flat(dual[0]), flat(params), rtol=0, atol=1e-12)
        expected = flat(oracle.duals[rank]) + m  # less the mean
        torch.testing.assert_close(dual[1], expected, rtol=0, atol=1e-12)


SCAFFOLD: dict[str, Any] = {"every": 3, "mode": "dual", "eta": 1.0}


def scaffold(world_size: int, steps: int, lr: float = 0.05) -> Tensor:
    """SCAFFOLD, option II, with all clients in every round and the outer step 1."""
    alpha = torch.arange(1.0, world_size + 1, dtype=torch.float64)
    alpha /= alpha.sum()
    x = flat(start())
    controls = [torch.zeros_like(x) for _ in range(world_size)]
    for first in range(0, steps, SCAFFOLD["every"]):
        c = sum(a * c_i for a, c_i in zip(alpha, controls, strict=True))
        ends = []
        for i in range(world_size):
            y = x.clone()
            for step in range(first, first + SCAFFOLD["every"]):
                parts = y.split([p.numel() for p in start()])
                shaped = [part.view(p.shape) for part, p in zip(parts, start(), strict=True)]
                found = [gradient(p, place, i, step) for place, p in enumerate(shaped)]
                g = flat([0 * p if d is None else d for p, d in zip(shaped, found, strict=True)])
                y = y - lr * (g - controls[i] + c)
            controls[i] = controls[i] - c + (x - y) / (SCAFFOLD["every"] * lr)
            ends.append(y)
        x = x + sum(a * (y - x) for a, y in zip(alpha, ends, strict=True))
    return x


@pytest.mark.parametrize("world_size", [2, 3])
def test_duals_without_memory_are_the_control_variates_of_scaffold(world_size: int) -> None:
    for _, _, w in on_ranks(world_size, train, "sgd", 15, SCAFFOLD):
        torch.testing.assert_close(w, scaffold(world_size, 15), rtol=0, atol=1e-12)


def average() -> Any:
    rank = int(os.environ["RANK"])
    params = start()
    inner = make_inner("adamw", params)
    consensus = Consensus(params, inner, every=3, weight=1.0 + rank)
    local = []
    for step in range(6):
        if step % 3 == 2:
            consensus.every = 100  # let this one pass without a meeting, to see where it ended
        inner_step(inner, params, rank, step)
        if step % 3 == 2:
            local.append(flat(params))
            consensus.meet()
            local.append(flat(params))
            consensus.every = 3
    return local


def test_the_default_is_plain_averaging_of_the_local_points() -> None:
    first, second = on_ranks(2, average)
    for ended, met in ((0, 1), (2, 3)):
        assert not torch.equal(first[ended], second[ended])
        mean = (first[ended] + 2 * second[ended]) / 3
        torch.testing.assert_close(first[met], mean, rtol=0, atol=1e-14)
        assert torch.equal(first[met], second[met])


def close() -> None:
    params = start()
    inner = torch.optim.SGD(params, lr=0.1)
    Consensus(params, inner, mode="dual")
    inner.step(lambda: 0.0)


def test_duals_and_closures_do_not_go_together_and_the_message_says_why() -> None:
    (error,) = on_ranks(1, close)
    with pytest.raises(ValueError, match="a closure computes them in it: call backward first"):
        raise error


def train_in_two_parts(stop: int, steps: int, options: dict[str, Any]) -> tuple[Any, Any]:
    rank = int(os.environ["RANK"])

    def run(first: int, last: int, saved: Any = None) -> tuple[Any, Any]:
        params = start()
        inner = make_inner("adamw", params)
        consensus = Consensus(params, inner, **options)
        if saved is not None:
            for p, value in zip(params, saved[0], strict=True):
                p.data.copy_(value)
            inner.load_state_dict(saved[1])
            consensus.load_state_dict(saved[2])
        for step in range(first, last):
            inner_step(inner, params, rank, step)
        state = (
            [p.detach().clone() for p in params],
            inner.state_dict(),
            consensus.state_dict(),
        )
        consensus.detach()
        return state, flat(params)

    saved, _ = run(0, stop)
    return run(stop, steps, saved)[1], run(0, steps)[1]


RESTARTS: list[tuple[int, dict[str, Any]]] = [
    (stop, {"every": 4, "lr": 2.0, "beta": 0.8, **options})
    for stop in (6, 8, 9)
    for options in ({}, {"mode": "dual"}, {"mode": "dual", "overlap": 3})
]


def restart_everywhere() -> list[tuple[Tensor, Tensor]]:
    return [train_in_two_parts(stop, 15, options) for stop, options in RESTARTS]


def test_a_restart_at_any_step_changes_nothing() -> None:
    for result in on_ranks(2, restart_everywhere):
        for (stop, options), (resumed, unbroken) in zip(RESTARTS, result, strict=True):
            assert torch.equal(resumed, unbroken), (stop, options)


def with_duals_of_another_number_of_ranks() -> Any:
    params = start()
    consensus = Consensus(params, make_inner("sgd", params), mode="dual")
    state = consensus.state_dict() | {"world_size": 8, "u": torch.ones_like(consensus.w)}
    with pytest.warns(UserWarning, match=r"rank 0 of 8 are not those of rank 0 of 1"):
        consensus.load_state_dict(state)
    with pytest.raises(ValueError, match="state_dict has 3 parameters, the model has 11"):
        consensus.load_state_dict(state | {"w": torch.zeros(3)})
    return consensus.u


def test_duals_of_another_number_of_ranks_start_anew_and_a_warning_says_so() -> None:
    (u,) = on_ranks(1, with_duals_of_another_number_of_ranks)
    assert not u.any()


def train_half(reduce_dtype: torch.dtype | None) -> Any:
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = model.to(torch.bfloat16)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    consensus = Consensus(
        model.parameters(), inner, every=2, buffers=model.buffers(), reduce_dtype=reduce_dtype
    )
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        x = torch.randn(16, 4, generator=generator).to(torch.bfloat16) + rank
        inner.zero_grad()
        model(x).square().mean().backward()
        inner.step()
    return [b.clone() for b in model.buffers()], consensus.w


def train_half_on_both_wires() -> list[Any]:
    return [train_half(reduce_dtype) for reduce_dtype in (None, torch.bfloat16)]


def test_half_precision_models_meet_in_float32_and_their_statistics_are_averaged() -> None:
    first, second = on_ranks(2, train_half_on_both_wires)
    for (buffers, w), (other_buffers, other_w) in zip(first, second, strict=True):
        assert w.dtype == torch.float32
        assert torch.equal(w, other_w)
        assert all(map(torch.equal, buffers, other_buffers))
    wide, narrow = (w for _, w in first)
    assert 0 < (wide - narrow).abs().max() < 0.01  # which crossed in 8 bits


DISAGREEMENTS: list[tuple[dict[str, Any], str]] = [
    ({"every": 4}, "every must be the same on all ranks: rank 0 has 3 and rank 1 has 4"),
    ({"lr": 0.5}, "lr must be the same"),
    ({"mode": "dual"}, "mode must be the same"),
    ({"tensors": 2}, "parameters must be .* rank 0 has 3 of them and rank 1 has 2"),
    ({"shape": (2, 3)}, r"entry 0 is \(\(3, 2\), .* on rank 0 and \(\(2, 3\)"),
]


def disagree() -> list[Exception]:
    return [_error(change) for change, _ in DISAGREEMENTS]


def _error(change: dict[str, Any]) -> Exception:
    params, options = start(), {"every": 3}
    if os.environ["RANK"] == "1":
        params = params[: change.get("tensors", 3)]
        if "shape" in change:
            params[0] = nn.Parameter(torch.zeros(change["shape"], dtype=torch.float64))
        options |= {k: v for k, v in change.items() if k not in ("tensors", "shape")}
    with pytest.raises(RankMismatchError) as error:
        Consensus(params, make_inner("sgd", params), **options)
    return error.value


def test_ranks_that_mean_different_things_say_so_at_once() -> None:
    for errors in on_ranks(2, disagree):
        for (_, words), error in zip(DISAGREEMENTS, errors, strict=True):
            with pytest.raises(RankMismatchError, match=words):
                raise error


def disagree_after_loading() -> None:
    params = start()
    inner = make_inner("sgd", params)
    consensus = Consensus(params, inner, every=1)
    state = consensus.state_dict() | {"meetings": int(os.environ["RANK"])}
    consensus.load_state_dict(state)
    inner_step(inner, params, 0, 0)


def test_ranks_that_took_up_different_checkpoints_say_so_at_the_first_meeting() -> None:
    for error in on_ranks(2, disagree_after_loading):
        with pytest.raises(RankMismatchError, match=r"meetings .* rank 0 has 0 and rank 1 has 1"):
            raise error


def lose(victim: int, meeting: int) -> None:
    rank = int(os.environ["RANK"])
    params = start()
    inner = make_inner("sgd", params)
    consensus = Consensus(params, inner, every=2)
    for step in range(1000):
        if rank == victim and consensus.meetings == meeting:
            os.kill(os.getpid(), signal.SIGKILL)
        inner_step(inner, params, rank, step)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_stops_the_others_and_they_name_it(victim: int) -> None:
    results = on_ranks(4, lose, victim, 3)
    for rank, error in enumerate(results):
        if rank != victim:
            with pytest.raises(
                RankLostError, match=f"rank {rank} of 4 failed: rank {victim} sent no"
            ):
                raise error
    assert "-9" in str(results[victim])


def be_late() -> None:
    rank = int(os.environ["RANK"])
    params = start()
    inner = make_inner("sgd", params)
    dist.barrier()  # all have started
    consensus = Consensus(params, inner, every=1, timeout=3.0)
    if rank == 1:  # until the other has given up
        wait_for(consensus._ranks._heartbeat.alarm_raised, seconds=200)
    inner_step(inner, params, rank, 0)


def test_one_that_is_alive_and_late_is_not_called_lost() -> None:
    first, _ = on_ranks(2, be_late)
    with pytest.raises(RankLostError, match="though every rank is alive: rank 1 was late"):
        raise first


def stop_before_the_first_meeting(victim: int) -> str:
    dist.barrier()  # all have started
    if int(os.environ["RANK"]) == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    params = start()
    with pytest.raises(RankLostError) as error:
        Consensus(params, make_inner("sgd", params), timeout=4.0)
    return str(error.value)


def test_a_rank_stopped_before_the_first_meeting_is_named_after_the_timeout() -> None:
    results = on_ranks(3, stop_before_the_first_meeting, 1, stopped=[1])
    for rank in (0, 2):
        assert f"meeting 1 of rank {rank} of 3 failed: rank 1 sent no heartbeat" in results[rank]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "every must be a whole number of at least 1, got 0"),
    ({"every": 2.5}, r"every must be a whole number of at least 1, got 2\.5"),
    ({"lr": 0.0}, "lr must be a finite number greater than 0"),
    ({"lr": float("nan")}, "lr must be a finite number greater than 0, got nan"),
    ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1\.0"),
    ({"eta": -0.1}, r"eta must be in \[0, 1\]"),
    ({"mode": "both"}, "mode must be one of outer, dual, got 'both'"),
    ({"weight": -1.0}, "weight must be a finite number of at least 0"),
    ({"overlap": 50}, "overlap must be less than every=50, got 50"),
    ({"reduce_dtype": torch.int8}, "reduce_dtype must be a floating point type"),
    ({"timeout": 0}, "timeout must be a finite number greater than 0"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda x: str(x)[:30])
def test_bad_values_name_the_argument(options: dict[str, Any], words: str) -> None:
    params = start()
    with pytest.raises(ValueError, match=words):
        Consensus(params, make_inner("sgd", params), **options)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (lambda: [], "params must contain at least one tensor"),
        (lambda: [torch.zeros(2)], "that requires a gradient, got none"),
        (lambda: [nn.Parameter(torch.zeros(2, dtype=torch.complex64))], "params must be real"),
    ],
)
def test_bad_parameters_are_refused(params: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Consensus(params(), make_inner("sgd", start()))


def test_parameters_that_the_inner_optimizer_does_not_have_are_refused_by_index_and_shape() -> None:
    params = start()
    words = (
        r"params\[1\] of shape \(4,\) and params\[2\] of shape \(\) are not in the inner "
        r"optimizer .*leave them out, or add them with add_param_group"
    )
    with pytest.raises(ValueError, match=words):
        Consensus(params, make_inner("sgd", params[:1]))


def test_a_frozen_parameter_is_nobodys_and_keeps_its_place_in_the_count() -> None:
    params = start()
    params[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"^params\[2\] of shape \(\) is not in"):
        Consensus(params, make_inner("sgd", params[1:2]))


def test_of_many_parameters_that_are_not_in_the_inner_optimizer_some_are_named() -> None:
    params = [nn.Parameter(torch.zeros(3)) for _ in range(9)]
    with pytest.raises(ValueError, match=r"params\[2\] of shape \(3,\) and 6 more are not"):
        Consensus(params, make_inner("sgd", start()))


def train_views_of_one_buffer() -> Any:
    """An inner optimizer that has all weights in one tensor, of which the model has views."""
    rank = int(os.environ["RANK"])
    buffer = nn.Parameter(torch.zeros(6))
    params = [nn.Parameter(buffer.data[:4].view(2, 2)), nn.Parameter(buffer.data[4:])]
    inner = torch.optim.SGD([buffer], lr=1.0)
    consensus = Consensus(params, inner, every=1)
    buffer.grad = torch.full((6,), float(rank))
    inner.step()
    consensus.detach()
    other = nn.Parameter(torch.zeros(6))
    with pytest.raises(ValueError, match=r"params\[1\] of shape \(6,\) is not in the inner"):
        Consensus([buffer, other], inner)
    return buffer.detach()


def test_views_of_what_the_inner_optimizer_has_and_groups_of_it_are_taken() -> None:
    for found in on_ranks(2, train_views_of_one_buffer):
        assert found.tolist() == [-0.5] * 6


def destroy_the_group_first() -> tuple[bool, str]:
    consensus = Consensus(params := start(), inner := make_inner("sgd", params))
    group = weakref.ref(dist.distributed_c10d._get_default_group())
    dist.destroy_process_group()
    params[0].grad = torch.ones_like(params[0])
    inner.step()
    with pytest.raises(RuntimeError) as error:
        consensus.meet()
    gone = group() is None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return gone, str(error.value)


def test_a_destroyed_process_group_is_gone_with_its_threads_and_said_to_be() -> None:
    """A thread of gloo that is still at work when the interpreter ends aborts the process."""
    for gone, message in on_ranks(2, destroy_the_group_first):
        assert gone
        assert "has been destroyed" in message


def test_without_a_process_group_the_cure_is_named() -> None:
    params = start()
    with pytest.raises(RuntimeError, match=r"torchrun and call badm.init_process_group"):
        badm.Consensus(params, make_inner("sgd", params))
