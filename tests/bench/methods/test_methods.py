"""Promises that every method keeps, and what is particular to some."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import badm
from badm.bench.method import Method, Range, Trainer, TrainingSetup, trainable_parameters
from badm.bench.methods import METHODS, UnknownMethod, find
from badm.bench.methods.as_matrix import AsMatrix, gradients_of
from badm.bench.methods.kl_shampoo import KLShampoo
from badm.bench.methods.matrices_and_rest import MatricesAndRest
from badm.bench.methods.muon import FullPrecisionMuon, Muon
from badm.bench.methods.normuon import full_precision_normuon
from badm.bench.methods.psgd_kron import PSGDKron
from badm.bench.paper import Paper

# Layer-wise methods do not train these models, and have tests of their own.
GRADIENT_METHODS = [method for method in METHODS.values() if method.family != "layer-wise"]
every_method = pytest.mark.parametrize("method", GRADIENT_METHODS, ids=lambda m: m.name)
STEPS = 4


class Everything(nn.Module):
    """A kernel, matrices, an embedding, tied weights, vectors, a scalar, one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.kernel = nn.Conv1d(6, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.hidden.weight
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Linear(3, 3)
        self.narrow = nn.Linear(8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        h: Tensor = self.kernel(self.words(words).mT).mT
        h = torch.tanh(self.again(torch.tanh(self.hidden(self.norm(h)))))
        h = self.gain * h.mean(1)
        return self.head(h) * (2 + self.narrow(h))


class OnlyVectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, words: Tensor) -> Tensor:
        return self.scale * words[:, :3].float() + self.shift


@dataclass
class BatchOfWords:
    """Work on one batch: words, and as their class how many of them are low."""

    module: nn.Module
    index: int = 0
    lr_factor: float = 1.0
    gradients: float = 0.0

    def gradient(self) -> float:
        words = torch.randint(7, (16, 5), generator=torch.Generator().manual_seed(self.index))
        for p in trainable_parameters(
            self.module
        ):  # as the engine does it: others keep what they have
            p.grad = None
        loss = cross_entropy(self.module(words), ((words < 3).sum(1) - 1).clamp(0, 2))
        loss.backward()
        self.count_gradients(1.0)
        return loss.item()

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        yield 1.0, self.gradient()

    def count_gradients(self, gradients: float) -> None:
        self.gradients += gradients


def model(kind: type[nn.Module] = Everything) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def trainer_of(method: Method, module: nn.Module, **setting: Any) -> Trainer:
    return method.build(TrainingSetup(module, 40), method.setting(setting))


def train(
    trainer: Trainer,
    module: nn.Module,
    steps: int,
    start: int = 0,
    lr_factor: float = 1.0,
    falling: bool = False,
) -> list[float]:
    losses = []
    for index in range(start, start + steps):
        factor = lr_factor / (1 + index) if falling else lr_factor
        losses.append(trainer.step(BatchOfWords(module, index, factor)))
    return losses


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y), name


def middle(method: Method) -> float:
    """The learning rate in the middle of the range, on its logarithmic scale."""
    searched = method.space["lr"]
    assert isinstance(searched, Range)
    return math.sqrt(searched.low * searched.high)


def assert_resumes(method: Method, at: int, steps: int) -> None:
    whole = model()
    train(trainer_of(method, whole), whole, steps, falling=True)

    first = model()
    trainer = trainer_of(method, first)
    train(trainer, first, at, falling=True)
    saved = through_a_file({"model": first.state_dict(), "trainer": trainer.state_dict()})
    second = model()
    resumed = trainer_of(method, second)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["trainer"])
    train(resumed, second, steps - at, start=at, falling=True)

    assert_equal(second, whole)


@every_method
def test_resuming_is_bitwise_exact(method: Method) -> None:
    assert_resumes(method, at=5, steps=12)


@pytest.mark.parametrize("name", ["badm-kronecker", "soap", "shampoo", "kl-shampoo"])
def test_resuming_with_bases_and_roots_of_step_10_is_bitwise_exact(name: str) -> None:
    assert_resumes(METHODS[name], at=13, steps=23)


@every_method
def test_training_changes_what_is_used_and_nothing_else(method: Method) -> None:
    before, after = model(), model()
    train(trainer_of(method, after), after, STEPS)
    for (name, x), y in zip(before.named_parameters(), after.parameters(), strict=True):
        assert torch.equal(x, y) == name.startswith("unused"), name


@every_method
def test_evaluating_leaves_training_bitwise_unchanged(method: Method) -> None:
    plain, evaluated = model(), model()
    train(trainer_of(method, plain), plain, 12)
    trainer = trainer_of(method, evaluated)
    for index in range(12):
        with trainer.evaluation_weights():
            evaluated(torch.zeros(1, 5, dtype=torch.long))
        train(trainer, evaluated, 1, start=index)
    assert_equal(evaluated, plain)


@every_method
def test_evaluating_restores_the_weights_after_an_error(method: Method) -> None:
    module = model()
    trainer = trainer_of(method, module)
    train(trainer, module, 12)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(KeyError), trainer.evaluation_weights():
        raise KeyError
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))
    train(trainer, module, 1, start=12)


@every_method
def test_lr_factor_scales_the_learning_rate(method: Method) -> None:
    if method.name == "sisa":
        pytest.skip("its schedule divides both penalties: see test_sisa.py")
    scaled, lower = model(), model()
    lr = method.defaults["lr"]
    train(trainer_of(method, scaled, lr=lr), scaled, STEPS, lr_factor=0.5)
    factor = 1.0 if method.name == "schedule-free" else 0.5  # which has no schedule
    train(trainer_of(method, lower, lr=lr * factor), lower, STEPS)
    assert_equal(scaled, lower)


@every_method
def test_no_random_numbers_are_taken_from_others(method: Method) -> None:
    module = model()
    trainer = trainer_of(method, module)
    before = torch.get_rng_state()
    train(trainer, module, 11)
    assert torch.equal(torch.get_rng_state(), before)


# Whose default steps are too short for the 60 steps of the test below.
SHORT_STEPS = {
    "adagrad",
    "badm-printed",
    "lion",
    "sgd",
    "sgd-momentum",
    "torch-sgd",
    "torch-sgd-momentum",
}


@every_method
def test_the_loss_falls(method: Method) -> None:
    module = model()
    lr = middle(method) if method.name in SHORT_STEPS else method.defaults["lr"]
    trainer = method.build(TrainingSetup(module, 60), method.setting({"lr": lr}))
    train(trainer, module, 60)
    with trainer.evaluation_weights():
        after = BatchOfWords(module, 1000).gradient()
    assert after < 0.97 * BatchOfWords(model(), 1000).gradient()


@every_method
def test_frozen_parameters_are_left_alone(method: Method) -> None:
    before, after = model(), model()
    for name in ("words", "head"):
        getattr(after, name).requires_grad_(False)
    trainer = trainer_of(method, after, lr=middle(method))
    after.words.weight.grad = torch.ones_like(after.words.weight)  # as left over from before
    losses = train(trainer, after, STEPS)
    assert torch.equal(after.words.weight, before.words.weight)
    assert torch.equal(after.head.weight, before.head.weight)
    assert not torch.equal(after.kernel.weight, before.kernel.weight)
    assert all(map(math.isfinite, losses))


@every_method
def test_a_model_of_vectors_alone_can_be_trained(method: Method) -> None:
    module = model(OnlyVectors)
    losses = train(trainer_of(method, module), module, STEPS)
    assert all(map(math.isfinite, losses))
    assert not torch.equal(module.shift, torch.zeros(3))


@every_method
def test_kernels_in_channels_last_format_can_be_trained(method: Method) -> None:
    plain, last = (nn.Conv2d(3, 4, 3, bias=False) for _ in range(2))
    last.load_state_dict(plain.state_dict())
    last.to(memory_format=torch.channels_last)
    for module in (plain, last):
        trainer = trainer_of(method, module)
        for step in range(12):
            g = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(step))
            trainer.step(Given(module.weight, g))
    if method.name == "psgd-kron":  # whose random vectors are dealt out in the order of memory
        assert (last.weight - plain.weight).abs().max() < 6 * method.defaults["lr"]
        return
    torch.testing.assert_close(last.weight, plain.weight, rtol=1e-3, atol=1e-4)


@dataclass
class Given:
    """Work whose gradient is given."""

    parameter: nn.Parameter
    g: Tensor
    lr_factor: float = 1.0

    def gradient(self) -> float:
        self.parameter.grad = torch.empty_like(self.parameter).copy_(self.g)
        return 0.0

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        yield 1.0, self.gradient()

    def count_gradients(self, gradients: float) -> None: ...


@every_method
def test_only_lr_is_searched_over_three_decades_with_the_default_inside(method: Method) -> None:
    assert list(method.space) == ["lr"]
    searched = method.space["lr"]
    assert isinstance(searched, Range)
    assert searched.log
    assert searched.high / searched.low == pytest.approx(1000)
    assert searched.low <= method.defaults["lr"] <= searched.high


@every_method
def test_settings_are_plain_and_unknown_ones_are_refused(method: Method) -> None:
    assert all(isinstance(value, int | float | str | bool) for value in method.defaults.values())
    with pytest.raises(ValueError, match=f"{method.name} takes lr, .*got speed"):
        method.setting({"speed": 1})


@every_method
def test_every_setting_can_be_changed(method: Method) -> None:
    for name, value in method.defaults.items():
        other = not value if isinstance(value, bool) else value / 2 if value else 0.5
        if isinstance(value, int) and not isinstance(value, bool):
            other = max(1, value // 2)
        if name == "nesterov" and other and not method.defaults["momentum"]:
            continue  # which torch refuses
        trainer_of(method, model(), **{name: other})


def test_names() -> None:
    assert list(METHODS) == [method.name for method in METHODS.values()]
    families: dict[str, set[str]] = {}
    for method in METHODS.values():
        families.setdefault(method.family, set()).add(method.name)
    keras = {"sgd", "sgd-momentum", "adagrad", "rmsprop", "adam", "nadam", "adamax"}
    assert families == {
        "keras": {*keras, "sgd-sigma", "adam-sigma"},
        "torch": {f"torch-{name}" for name in keras},
        "peer": {
            "adamw",
            "qhm",
            "muon",
            "normuon",
            "soap",
            "shampoo",
            "kl-shampoo",
            "psgd-kron",
            "schedule-free",
            "lion",
            "adabelief",
            "adan",
            "ademamix",
            "mars",
            "prodigy",
            "sisa",
        },
        "layer-wise": {"dladmm", "aa-dladmm", "sigmoid-admm"},
        "badm": {
            "badm",
            "badm-printed",
            "badm-diagonal",
            "badm-spectral",
            "badm-kronecker",
            "badm-kronecker-spectral",
        },
    }


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("adm", "; did you mean adam or badm? `"),
        ("Adam", "; did you mean adam? `"),
        ("shedule-free", "; did you mean schedule-free? `"),
        ("xyzzy", "; `badm list methods` shows all"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(typed: str, suggested: str) -> None:
    with pytest.raises(UnknownMethod) as refused:
        find(typed)
    assert f"there is no method {typed!r}{suggested}" in str(refused.value)


@pytest.mark.slow
def test_importing_methods_is_light() -> None:
    code = "import sys, badm.bench.methods; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pytorch_optimizer", "schedulefree", "heavyball", "torch._dynamo"} & set(
        done.stdout.split()
    )


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].family == "torch"])
def test_defaults_of_torch_are_those_of_torch(name: str) -> None:
    module = nn.Linear(2, 2)
    ours = METHODS[name].build(TrainingSetup(module, 1), METHODS[name].setting({})).optimizer
    theirs = type(ours)(module.parameters()).defaults
    if name == "torch-sgd-momentum":
        theirs["momentum"] = 0.9
    assert ours.defaults == theirs


# As the authors of each state it; peers.py says why where it is not what a package has by default.
STATED: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "qhm": {"lr": 0.1, "momentum": 0.999, "nu": 0.7, "weight_decay": 0.0},
    "soap": {
        "lr": 3e-3,
        "betas": (0.95, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.01,
        "precondition_frequency": 10,
        "max_precondition_dim": 10_000,
    },
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.1},
    "mars": {
        "lr": 3e-3,
        "lr_1d_factor": 1.0,
        "betas": (0.95, 0.99),
        "betas_1d": (0.9, 0.95),
        "gamma": 0.025,
        "mars_type": "adamw",
        "optimize_1d": False,
        "weight_decay": 0.01,
    },
    "prodigy": {"lr": 1.0, "betas": (0.9, 0.999), "d0": 1e-6, "d_coef": 1.0, "beta3": None},
    "adabelief": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-16,
        "weight_decay": 0.0,
        "weight_decouple": True,
        "rectify": True,
    },
    "adan": {"lr": 1e-3, "betas": (0.98, 0.92, 0.99), "eps": 1e-8, "weight_decay": 0.02},
}


@pytest.mark.parametrize("name", STATED)
def test_peers_run_with_the_settings_their_authors_state(name: str) -> None:
    """Not only in the table of defaults: in the groups that the optimizer steps with."""
    trainer = trainer_of(METHODS[name], model())
    (group,) = trainer.optimizer.param_groups  # type: ignore[attr-defined]
    assert {option: group[option] for option in STATED[name]} == STATED[name]


@pytest.mark.parametrize(("steps", "beta3"), [(256_000, 0.99990234375), (1000, 0.975), (10, 0.9)])
def test_ademamix_averages_over_the_part_of_the_run_that_its_authors_do(
    steps: int, beta3: float
) -> None:
    method = METHODS["ademamix"]
    trainer = method.build(TrainingSetup(model(), steps), method.setting({}))
    (group,) = trainer.optimizer.param_groups
    assert group["betas"] == pytest.approx((0.9, 0.999, beta3))
    assert (group["alpha"], group["t_alpha_beta3"]) == (8.0, steps)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (7, 7)])
def test_normuon_in_full_precision_is_that_of_its_package_but_for_rounding(
    shape: tuple[int, int],
) -> None:
    from pytorch_optimizer import NorMuon

    torch.manual_seed(0)
    start = torch.randn(shape)
    ways = []
    for kind in (full_precision_normuon(), NorMuon):
        w = nn.Parameter(start.clone())
        optimizer = kind([{"params": [w], "use_muon": True}], lr=0.01, update_scale="match_rms")
        for step in range(STEPS):
            w.grad = torch.randn(shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        ways.append(w.detach() - start)
    assert not torch.equal(*ways)
    assert (ways[0] - ways[1]).norm() < 0.03 * ways[1].norm()  # of bfloat16


def test_what_numpy_draws_is_not_affected_by_psgd_kron() -> None:
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    module = model()
    train(trainer_of(METHODS["psgd-kron"], module), module, STEPS)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize("kind", [KLShampoo, PSGDKron])
def test_embeddings_and_vectors_are_not_preconditioned(kind: type[MatricesAndRest]) -> None:
    module = model()
    matrices = {id(kernel.parameter) for kernel in kind(module, lr=1e-3).kernels}
    assert {name for name, p in module.named_parameters() if id(p) in matrices} == {
        "kernel.weight",
        "hidden.weight",
        "unused.weight",
    }


@pytest.mark.parametrize("name", ["kl-shampoo", "psgd-kron"])
def test_a_checkpoint_has_no_pickled_code(name: str) -> None:
    module = model()
    trainer = trainer_of(METHODS[name], module)
    train(trainer, module, 2)

    def leaves(value: Any) -> Iterator[Any]:
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list | tuple | set):
            for part in inner:
                yield from leaves(part)
        else:
            yield value

    kinds = {type(leaf) for leaf in leaves(trainer.state_dict())}
    assert kinds <= {Tensor, int, float, bool, str, type(None)}


# What the paper states goes to its own algorithm; the rest gets its learning rate.
@pytest.mark.parametrize("name", ["badm-printed", "badm-diagonal"])
def test_the_papers_penalties(name: str) -> None:
    stated = METHODS[name].paper_setting(Paper(lr=1e-3, rho=600, sigma=400))
    assert (stated["lr"], stated["beta"]) == (1 / 400, 0.6)
    only_lr = METHODS[name].paper_setting(Paper(lr=1e-3))
    assert only_lr["lr"] * (1 - only_lr["beta"]) == pytest.approx(1e-3)  # 1/(ρ+σ)
    assert METHODS[name].paper_setting(Paper()) == METHODS[name].defaults


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_controls_have_the_papers_step_and_nothing_else_of_it(name: str) -> None:
    control = METHODS[f"{name}-sigma"]
    stated = control.paper_setting(Paper(lr=1e-3, rho=600, sigma=400))
    assert stated == {**METHODS[name].defaults, "lr": 1 / 400}
    assert control.paper_setting(Paper()) == METHODS[name].defaults


@pytest.mark.parametrize("name", ["badm", "badm-spectral", "badm-kronecker", "adam", "soap"])
def test_the_papers_learning_rate(name: str) -> None:
    method = METHODS[name]
    stated = method.paper_setting(Paper(lr=2e-4, rho=1000, sigma=4000))
    assert stated == {**method.defaults, "lr": 2e-4}


def test_badm_printed_is_badm_from_the_papers_penalties() -> None:
    ours, theirs = model(), model()
    train(trainer_of(METHODS["badm-printed"], ours), ours, STEPS)
    printed = badm.BADM.from_penalties(theirs.parameters(), metric="euclidean")
    for index in range(STEPS):
        BatchOfWords(theirs, index).gradient()
        printed.step()
    assert_equal(ours, theirs)


@pytest.mark.slow
def test_badm_is_the_default_of_the_library() -> None:
    ours, theirs = model(), model()
    train(trainer_of(METHODS["badm"], ours), ours, STEPS)
    default = badm.BADM(badm.parameter_groups(theirs))
    for index in range(STEPS):
        BatchOfWords(theirs, index).gradient()
        default.step()
    assert_equal(ours, theirs)


def test_muon_orthogonalises_what_badm_does_but_for_the_output_layer() -> None:
    module = model()
    train(trainer_of(METHODS["badm"], module), module, 1)
    optimizer = badm.BADM(badm.parameter_groups(module))
    BatchOfWords(module).gradient()
    module.unused(torch.ones(3)).sum().backward()
    optimizer.step()
    names = {id(p): name for name, p in module.named_parameters()}
    spectral = {
        names[id(p)] for p, state in optimizer.state.items() if "second_moment" not in state
    }
    muon = {names[id(kernel.parameter)] for kernel in Muon(module, lr=1e-3).kernels}
    assert muon == {"kernel.weight", "hidden.weight", "unused.weight"}
    assert spectral == muon | {"head.weight"}


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (7, 7)])
def test_muon_in_full_precision_is_that_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ways, weights = [], []
    for kind in (FullPrecisionMuon, torch.optim.Muon):
        w = nn.Parameter(start.clone())
        optimizer = kind([w], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for step in range(STEPS):
            w.grad = torch.randn(shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        weights.append(w.detach())
        ways.append(w.detach() - start)
    assert (ways[0] - ways[1]).norm() < 0.03 * ways[1].norm()  # of bfloat16
    assert not torch.equal(*weights)


def test_muon_in_full_precision_leaves_alone_what_has_no_gradient() -> None:
    w = nn.Parameter(torch.ones(2, 2))
    optimizer = FullPrecisionMuon([w], lr=0.01, weight_decay=0.1)
    optimizer.step()
    assert torch.equal(w, torch.ones(2, 2))
    w.grad = torch.zeros(2, 2)
    optimizer.step()
    assert torch.equal(w, torch.full((2, 2), 1 - 0.01 * 0.1))


def test_a_kernel_as_a_matrix_shares_memory_in_any_format() -> None:
    kernel = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    kernel.grad = kernel.detach().clone()
    flat = AsMatrix(kernel)
    with gradients_of([flat]):
        assert torch.equal(flat.matrix.grad, flat.matrix)
    assert flat.matrix.grad is None
    with torch.no_grad():
        flat.matrix.zero_()
    assert not kernel.any()


def test_schedule_free_is_evaluated_at_the_average_of_its_weights() -> None:
    module = model()
    trainer = trainer_of(METHODS["schedule-free"], module, beta1=0.9, warmup=0.0)
    average = torch.zeros_like(module.head.weight)
    for index in range(STEPS):
        train(trainer, module, 1, start=index)
        average += trainer.optimizer.state[module.head.weight]["z"] / STEPS
    with trainer.evaluation_weights():
        torch.testing.assert_close(module.head.weight, average, rtol=1e-4, atol=1e-5)


def test_schedule_free_warms_up_over_its_share_of_the_steps() -> None:
    module = model()
    method = METHODS["schedule-free"]
    trainer = method.build(TrainingSetup(module, 400), method.setting({}))
    assert trainer.optimizer.param_groups[0]["warmup_steps"] == 20


def test_schedule_free_is_evaluated_with_batchnorm_statistics_of_its_average() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))

    def calibrate() -> None:
        with torch.no_grad():
            module.train()(x)

    problem = TrainingSetup(module, steps=10, calibrate=calibrate)
    method = METHODS["schedule-free"]
    trainer = method.build(problem, method.setting({"lr": 0.1}))
    for _ in range(3):
        module.train()(x).square().sum().backward()
        trainer.optimizer.step()  # type: ignore[attr-defined]
    norm = module[1]
    before = {name: b.clone() for name, b in norm.named_buffers()}
    with trainer.evaluation_weights():
        expected = module[0](x).mean(0)
        torch.testing.assert_close(norm.running_mean, expected.detach())
    for name, buffer in norm.named_buffers():
        assert torch.equal(buffer, before[name])
    assert norm.momentum == 0.1
