"""Lightning's Trainer and Fabric, in one process and with DDP in two."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.harness import BATCH, SAVED_AT, STEPS, Run, loss, network, samples, weights


def with_trainer(run: Run) -> list[Tensor]:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return mse_loss(self.network(x), y)

        def configure_optimizers(self) -> Any:
            return run.make(self.network)

    class Killed(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            run.after_step(trainer.global_step)

    save = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=run.folder, every_n_train_steps=SAVED_AT, save_top_k=-1, filename="{step}"
    )
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=run.ranks,
        strategy="ddp" if run.ranks > 1 else "auto",
        callbacks=[save, Killed()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    checkpoints = sorted(run.checkpoint.parent.glob("*.ckpt"))
    trainer.fit(
        module,
        # An epoch ends where the checkpoint is: Lightning does not skip batches of one begun.
        DataLoader(TensorDataset(*samples(run.ranks * SAVED_AT * BATCH)), batch_size=BATCH),
        ckpt_path=str(checkpoints[0]) if checkpoints else None,
        weights_only=False,
    )
    return weights(module.network)


def with_fabric(run: Run) -> list[Tensor]:
    import lightning

    fabric = lightning.Fabric(
        accelerator="cpu", devices=run.ranks, strategy="ddp" if run.ranks > 1 else "auto"
    )
    fabric.launch()
    plain = network()
    model, optimizer = fabric.setup(plain, run.make(plain))
    start, state = 0, {"model": model, "optimizer": optimizer, "step": 0}
    if run.checkpoint.exists():
        fabric.load(run.checkpoint, state)
        start = state["step"]
    for k in range(start, STEPS):
        optimizer.zero_grad()
        fabric.backward(loss(model, k, run))
        optimizer.step()
        if k + 1 == SAVED_AT:
            fabric.save(run.checkpoint, {**state, "step": k + 1})
        run.after_step(k + 1)
    return weights(plain)
