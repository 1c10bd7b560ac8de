"""The paper's text classifier, trained by Keras with BADM on the film reviews of IMDB.

    pip install "badm[bench,keras]"; KERAS_BACKEND=torch python examples/keras_imdb.py

The reviews are those of ``badm run text-imdb``: ``badm data fetch imdb`` gets them.
"""

import argparse
import math
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers

from badm.adapters.keras import BADM
from badm.bench.tasks.text_classification import TextClassification


def train(scale: Any = "cpu", epochs: int = 2, seed: int = 0) -> dict[str, float]:
    """Train the classifier; return the accuracy on the validation and on the test split."""
    keras.utils.set_random_seed(seed)
    task = TextClassification(scale)
    data, width = task.data(), task.size_of.width
    model = keras.Sequential(
        [
            layers.Embedding(len(data.train.vocabulary), width),
            layers.Dropout(0.5),
            layers.Conv1D(width, 7, strides=3, activation="relu"),
            layers.Conv1D(width, 7, strides=3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(width, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    steps = epochs * math.ceil(len(data.train.labels) / task.batch_size)
    rise = round(0.05 * steps)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - rise, warmup_target=1e-2, warmup_steps=rise
    )
    # optimizer = keras.optimizers.Adam(1e-3)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)
    model.compile(optimizer=BADM(rate), loss=loss, metrics=[accuracy])
    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    pairs = {name: (part.numbers.numpy(), part.labels.numpy()) for name, part in splits.items()}
    model.fit(*pairs["train"], batch_size=task.batch_size, epochs=epochs, verbose=2)
    return {name: model.evaluate(*pairs[name], verbose=0)[1] for name in ("validation", "test")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    for name, value in train(epochs=parser.parse_args().epochs).items():
        print(f"{name} accuracy {value:.1%}")
