"""The Trainer by three routes, Accelerate and PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.clients.harness import (
    ADAMW,
    BATCH,
    SAVED_AT,
    STEPS,
    Run,
    loss,
    network,
    samples,
    train_with_torch,
    weights,
)


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = samples()
        return {"x": x[i], "labels": y[i]}


class WithLoss(nn.Module):
    """A model as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.network(x)
        return {"loss": mse_loss(outputs, labels), "logits": outputs}


def _trainer(run: Run, kind: Any = None, **options: Any) -> Any:
    import transformers

    class Killed(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # A checkpoint of this step is written after the callbacks.
            run.after_step(state.global_step)

    arguments = transformers.TrainingArguments(
        output_dir=run.folder,
        max_steps=STEPS,
        save_steps=SAVED_AT,
        per_device_train_batch_size=BATCH,
        learning_rate=0.01,
        weight_decay=0.1,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    return (kind or transformers.Trainer)(
        args=arguments, train_dataset=Rows(), callbacks=[Killed()], **options
    )


def _train(run: Run, trainer: Any) -> list[Tensor]:
    checkpoints = sorted(Path(run.folder).glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    return weights(trainer.model)


def with_optimizers(run: Run) -> list[Tensor]:
    model = WithLoss()
    return _train(run, _trainer(run, model=model, optimizers=(run.make(model), None)))


def with_subclass(run: Run) -> list[Tensor]:
    """A Trainer whose groups are those of badm.parameter_groups."""
    import transformers

    class OwnGroups(transformers.Trainer):  # type: ignore[misc]
        def create_optimizer(self, model: Any = None) -> Any:
            if self.optimizer is None:
                options = {"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay}
                self.optimizer = run.make(self.model, **options)
            return self.optimizer

    return _train(run, _trainer(run, OwnGroups, model=WithLoss()))


def with_class_and_options(run: Run) -> list[Tensor]:
    kind, options = run.arguments
    chosen = (kind, {"lr": 0.01, **options})
    return _train(run, _trainer(run, model=WithLoss(), optimizer_cls_and_kwargs=chosen))


def with_accelerate(run: Run) -> list[Tensor]:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    # Each process gets every second batch.
    loader = DataLoader(TensorDataset(*samples(2 * STEPS * BATCH)), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, run.make(model), loader)
    folder, start = run.checkpoint.with_name("state"), 0
    if folder.exists():
        accelerator.load_state(str(folder))
        loader, start = accelerator.skip_first_batches(loader, SAVED_AT), SAVED_AT
    for k, (x, y) in enumerate(loader, start):
        if k == STEPS:
            break
        optimizer.zero_grad()
        accelerator.backward(mse_loss(model(x), y))
        optimizer.step()
        if k + 1 == SAVED_AT:
            accelerator.save_state(str(folder))
        run.after_step(k + 1)
    found = weights(accelerator.unwrap_model(model))
    accelerator.end_training()
    return found


class Projected(nn.Module):
    """A network whose second matrix has LoRA factors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.query = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.query(self.body(x))


def with_peft(run: Run) -> list[Tensor]:
    """Only the factors train, and only they are saved."""
    import peft

    torch.manual_seed(0)
    base = Projected()
    folder = run.checkpoint.with_name("adapter")
    if folder.exists():
        model = peft.PeftModel.from_pretrained(base, folder, is_trainable=True)
    else:
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["query", "body.0", "body.3"])
        model = peft.get_peft_model(base, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make(model) if run.optimizer != ADAMW else run.make(trained)

    def step(k: int) -> None:
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()
        if k + 1 == SAVED_AT:
            model.save_pretrained(folder)

    train_with_torch(run, model, step, {"optimizer": optimizer})
    return [p.detach().clone() for p in trained]
