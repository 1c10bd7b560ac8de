"""A small BERT with the Trainer of Hugging Face: badm compare examples/compare_trainer.py"""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import badm.bench

STEPS = 60
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 8,
}


def sentences(count, seed):
    """Rows of tokens, labelled by whether a small token comes first."""
    tokens = torch.randint(0, 40, (count, 8), generator=torch.Generator().manual_seed(seed))
    rows = zip(tokens, (tokens[:, 0] < 20).long(), strict=True)
    return [{"input_ids": row, "labels": label} for row, label in rows]


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


@badm.bench.training(score="accuracy", percent=True, budget=STEPS)
def train(trial):
    """A small BERT on made-up sentences."""
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=2))
    optimizer = trial.optimizer(model)
    scheduler = trial.scheduler(optimizer)
    settings = TrainingArguments(
        output_dir="unused",
        seed=trial.seed,
        max_steps=trial.steps,
        per_device_train_batch_size=32,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        settings,
        train_dataset=sentences(640, 0),
        eval_dataset=sentences(200, 1),
        compute_metrics=accuracy,
        optimizers=(optimizer, scheduler),
        callbacks=[trial.trainer_callback()],
    )
    trial.test(lambda: trainer.evaluate(sentences(200, 2), metric_key_prefix="test"))
    trainer.train()
