"""``bbbp``: the network that Keras would make, loss and scores that are right, runs that learn."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from badm.bench.data.molecules import Molecules, bond_features
from badm.bench.data.synthetic_molecules import synthetic_molecules
from badm.bench.engine.task_data import load_splits
from badm.bench.errors import TaskError
from badm.bench.methods import find as find_method
from badm.bench.models.molecule_network import WIDTH, MoleculeNetwork
from badm.bench.task import Splits, Task
from badm.bench.tasks.bbbp import Bbbp, BbbpPadded, _read
from tests.helpers.engine_tasks import train

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MOLECULES = synthetic_molecules(11, seed=0)


def network(padded_mean: bool = False, seed: int = 0) -> MoleculeNetwork:
    """With biases that are not zero, so that none is forgotten unnoticed."""
    torch.manual_seed(seed)
    made = MoleculeNetwork(padded_mean)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "bias" in name or "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    return made


def array(x: Tensor) -> Any:
    return x.detach().numpy()


def keras_order(gates: Tensor) -> Tensor:
    """torch's r, z, n as Keras's z, r, h."""
    r, z, n = gates.chunk(3)
    return torch.cat([z, r, n])


def like_keras(keras: ModuleType, ours: MoleculeNetwork, molecules: Molecules) -> Tensor:
    """The logits of the public example, layer by layer of Keras, with our weights."""
    layers, cell = keras.layers, ours.messages.update
    gru = layers.GRUCell(WIDTH)
    gru.build((None, WIDTH))
    biases = [keras_order(bias) for bias in (cell.bias_ih, cell.bias_hh)]
    kernels = [keras_order(kernel).T for kernel in (cell.weight_ih, cell.weight_hh)]
    gru.set_weights([array(w) for w in (*kernels, torch.stack(biases))])

    # One matrix for each entry, as in the example.
    matrices = ours.messages.edge(bond_features()[molecules.kinds]).view(-1, WIDTH, WIDTH)
    states = pad(molecules.atoms, (0, WIDTH - molecules.atoms.shape[1]))
    for _ in range(4):
        sent = (matrices @ states[molecules.senders][:, :, None])[:, :, 0]
        heard = torch.stack(
            [sent[molecules.receivers == atom].sum(0) for atom in range(len(states))]
        )
        states, _ = gru(heard, states)

    x = nn.utils.rnn.pad_sequence(states.split(molecules.atom_counts.tolist()), batch_first=True)
    is_atom = torch.arange(x.shape[1]) < molecules.atom_counts[:, None]
    readout = ours.readout
    attention = layers.MultiHeadAttention(8, 64)
    attention.build(x.shape, x.shape)
    copied = []
    for dense in (readout.attention.query, readout.attention.key, readout.attention.value):
        copied += [dense.weight.T.reshape(64, 8, 64), dense.bias.reshape(8, 64)]
    merge = readout.attention.merge
    copied += [merge.weight.T.reshape(8, 64, 64), merge.bias]
    attention.set_weights([array(w) for w in copied])
    attended = attention(x, x, attention_mask=is_atom[:, None, :])

    def made(layer: Any, of: nn.Linear | nn.LayerNorm, width: int) -> Any:
        layer.build((None, None, width))
        first = of.weight.T if isinstance(of, nn.Linear) else of.weight
        layer.set_weights([array(first), array(of.bias)])
        return layer

    x = made(layers.LayerNormalization(), readout.first_norm, 64)(x + attended)
    hidden = made(layers.Dense(512, activation="relu"), readout.hidden, 64)(x)
    projected = made(layers.Dense(64), readout.project, 512)(hidden)
    x = made(layers.LayerNormalization(), readout.second_norm, 64)(x + projected)
    pool = layers.GlobalAveragePooling1D()
    pooled = pool(x) if readout.padded_mean else pool(x, mask=is_atom)
    hidden = made(layers.Dense(512, activation="relu"), ours.hidden, 64)(pooled)
    logits: Tensor = made(layers.Dense(1), ours.output, 512)(hidden)
    return logits[:, 0]


# The network


@pytest.mark.parametrize("padded_mean", [False, True])
def test_the_network_is_the_one_of_keras(keras: ModuleType, padded_mean: bool) -> None:
    ours = network(padded_mean)
    assert sum(p.numel() for p in ours.parameters()) == 290_561
    torch.testing.assert_close(
        ours(MOLECULES), like_keras(keras, ours, MOLECULES), rtol=1e-4, atol=1e-5
    )


def test_the_weights_start_where_those_of_keras_start(keras: ModuleType) -> None:
    torch.manual_seed(0)
    network = MoleculeNetwork()
    attention, update = network.readout.attention, network.messages.update
    # The shapes are Keras's: what they are taken for decides how far the weights may go.
    for weight, shape in (
        (network.messages.edge.weight, (7, 4096)),
        (update.weight_ih, (64, 192)),
        (attention.query.weight, (64, 8, 64)),
        (attention.key.weight, (64, 8, 64)),
        (attention.value.weight, (64, 8, 64)),
        (attention.merge.weight, (8, 64, 64)),
        (network.readout.hidden.weight, (64, 512)),
    ):
        theirs = keras.initializers.GlorotUniform(seed=0)(shape)
        assert weight.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=1e-2)
        assert weight.std().item() == pytest.approx(theirs.std().item(), rel=2e-2)
    theirs = keras.initializers.Orthogonal(seed=0)((64, 192))
    identity = torch.eye(64)
    torch.testing.assert_close(theirs @ theirs.T, identity, atol=1e-5, rtol=0)
    ours = update.weight_hh
    torch.testing.assert_close(ours.T @ ours, identity, atol=1e-5, rtol=0)
    for name, p in network.named_parameters():
        if "bias" in name:
            assert not p.any(), name


def alone(model: nn.Module, molecules: Molecules) -> Tensor:
    return torch.cat([model(molecules.pick(torch.tensor([i]))) for i in range(len(molecules))])


def test_a_molecule_is_scored_for_itself_unless_the_mean_is_padded() -> None:
    together = network()(MOLECULES)
    torch.testing.assert_close(together, alone(network(), MOLECULES), rtol=1e-4, atol=1e-5)
    padded = network(padded_mean=True)
    apart = (padded(MOLECULES) - alone(padded, MOLECULES)).abs()
    largest = MOLECULES.atom_counts == MOLECULES.atom_counts.max()
    assert (apart[~largest] > 1e-3).all()
    assert (apart[largest] < 1e-4).all()


def test_the_order_of_atoms_and_bonds_does_not_matter() -> None:
    molecule = MOLECULES.pick(torch.tensor([3]))
    order = torch.randperm(len(molecule.atoms), generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    bonds = torch.randperm(len(molecule.kinds), generator=torch.Generator().manual_seed(1))
    other = Molecules(
        molecule.atoms[order],
        place[molecule.receivers][bonds],
        place[molecule.senders][bonds],
        molecule.kinds[bonds],
        molecule.atom_counts,
        molecule.bond_counts,
        molecule.labels,
    )
    torch.testing.assert_close(network()(molecule), network()(other), rtol=1e-4, atol=1e-5)


# The loss and the figures


class Fixed(nn.Module):
    """Gives out logits that were put in, molecule by molecule."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.left = torch.tensor(logits)

    def forward(self, molecules: Molecules) -> Tensor:
        now, self.left = self.left[: len(molecules)], self.left[len(molecules) :]
        return now


def labelled(labels: list[float]) -> Molecules:
    made = synthetic_molecules(len(labels), seed=0)
    return Molecules(**{**vars(made), "labels": torch.tensor(labels)})


def test_the_loss_weighs_the_classes_as_the_example_does() -> None:
    loss = Bbbp("smoke").loss(Fixed([2.0, -1.0, 0.5]), labelled([1.0, 0.0, 0.0]))
    softplus = [math.log1p(math.exp(x)) for x in (-2.0, -1.0, 0.5)]
    expected = (0.5 * softplus[0] + 2.0 * softplus[1] + 2.0 * softplus[2]) / 3
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_metrics_are_those_of_the_whole_split() -> None:
    logits, labels = [2.0, -1.0, 0.5, -3.0, 0.5], [1.0, 0.0, 0.0, 1.0, 1.0]
    figures = Bbbp("smoke").evaluate(Fixed(logits), labelled(labels))
    # Of the 3 × 2 pairs the positive is ahead in three, and level in one.
    assert figures["roc_auc"] == pytest.approx(3.5 / 6)
    assert figures["accuracy"] == pytest.approx(3 / 5)
    signed = [(2 * label - 1) * logit for label, logit in zip(labels, logits, strict=True)]
    assert figures["loss"] == pytest.approx(sum(math.log1p(math.exp(-x)) for x in signed) / 5)
    many = 40 * [1.0, -1.0]
    assert Bbbp("smoke").evaluate(Fixed(many), labelled(40 * [1.0, 0.0]))["roc_auc"] == 1


def test_logits_that_are_no_numbers_give_a_score_that_is_none() -> None:
    figures = Bbbp("smoke").evaluate(Fixed([math.nan, 1.0]), labelled([1.0, 0.0]))
    assert math.isnan(figures["roc_auc"])


def test_the_gradient_of_a_batch_is_the_weighted_mean_of_its_sub_batches() -> None:
    task, batch = Bbbp("smoke"), MOLECULES
    whole, parts = network(), network()
    task.loss(whole, batch).backward()
    divided = task.split_batch(batch, 4)
    assert [task.size(part) for part in divided] == [3, 3, 3, 2]
    for part in divided:
        (task.size(part) / task.samples(batch) * task.loss(parts, part)).backward()
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)


# Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"),
    [(Bbbp, "adam"), (Bbbp, "badm"), (BbbpPadded, "badm"), (Bbbp, "badm-printed")],
)
def test_a_run_on_made_up_molecules_learns_without_rdkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: type[Task], method: str
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    setting = {"lr": 0.05} if method == "badm-printed" else {}
    done = train(task("smoke"), tmp_path, find_method(method), setting=setting)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
    assert done.facts["synthetic"] is True
    assert set(done.result.test or {}) == {"roc_auc", "accuracy", "loss"}
    assert done.result.score is not None
    assert done.result.score > 0.9


def test_the_training_set_comes_in_the_same_order_in_every_epoch() -> None:
    assert Bbbp.order == "fixed"


# Real data


@pytest.fixture(scope="module")
def real(badm_data: Path) -> Splits:
    pytest.importorskip(
        "rdkit", reason="needs RDKit: pip install -c constraints.txt 'rdkit>=2024.3'"
    )
    _read.cache_clear()
    with pytest.warns(UserWarning, match=r"BBBP.csv: 11 of 2,050 .* ICI17148 \(line 393\)"):
        return load_splits(Bbbp("cpu"))


@pytest.mark.data
def test_the_splits_are_those_of_the_example_but_for_a_test_split_worth_the_name(
    real: Splits,
) -> None:
    splits = (real.train, real.validation, real.test)
    assert [len(split) for split in splits] == [1435, 226, 389]
    assert sum(split.labels.sum().item() for split in splits) == 1567
    assert len(real.notes) == 3
    assert real.notes[0] == (
        "The public example trains on 1,640 molecules, validates on 389 and tests on 21. Here its "
        "389 are the test split; the first 1,435 train, the other 205 and its 21 validate"
    )
    assert real.notes[1].startswith("14 molecules of the test split are in the training split too")
    assert "11 of 2,050 SMILES" in real.notes[2]
    assert not real.synthetic
    # Every molecule is in one split, once.
    sizes = Counter(int(n) for split in splits for n in split.atom_counts)
    assert sum(size * count for size, count in sizes.items()) == 49_269


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_a_few_steps_on_real_molecules_lower_the_loss(tmp_path: Path) -> None:
    done = train(Bbbp("cpu"), tmp_path, find_method("adam"), setting={"lr": 5e-4}, steps=30)
    assert done.result is not None
    assert done.result.score is not None
    assert done.result.score > 0.75
    losses = [point.losses["model"] for point in done.points if point.losses]
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:5])


def test_without_data_the_command_that_gets_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=r"task bbbp: .*badm data fetch bbbp"):
        load_splits(Bbbp("cpu"))


def test_a_file_with_one_label_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdkit")
    (tmp_path / "bbbp").mkdir()
    (tmp_path / "bbbp" / "BBBP.csv").write_text("p_np,smiles\n" + 20 * "1,CCO\n")
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(TaskError, match="the train split of 14 must have both labels"):
        load_splits(Bbbp("cpu"))
