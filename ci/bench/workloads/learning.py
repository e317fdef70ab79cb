"""Clean workloads with torch and TensorFlow, on the CPU."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from workloads import Step, workload


@workload("torch")
def torch_variable_length(chance: Random, folder: Path) -> Step:
    """Train a recurrent network on batches of varying length."""
    torch = import_module("torch")
    torch.manual_seed(chance.getrandbits(32))
    network = torch.nn.GRU(8, 16, batch_first=True)
    last = torch.nn.Linear(16, 1)
    descent = torch.optim.Adam([*network.parameters(), *last.parameters()], lr=1e-3)

    def step() -> None:
        batch = torch.randn(4, chance.randint(3, 60), 8)
        descent.zero_grad()
        output, _ = network(batch)
        loss = torch.nn.functional.mse_loss(last(output[:, -1]).squeeze(-1), batch.mean(dim=(1, 2)))
        loss.backward()
        descent.step()
        assert loss.item() >= 0

    return step


@workload("torch")
def torch_two_loader_workers(chance: Random, folder: Path) -> Step:
    """Read a shuffled data set through a DataLoader with two workers."""
    torch = import_module("torch")
    data = import_module("torch.utils.data")

    def step() -> None:
        rows = chance.randint(20, 80)
        table = data.TensorDataset(torch.randn(rows, 3, 8), torch.arange(rows))
        seen = 0
        for _, numbers in data.DataLoader(table, batch_size=8, shuffle=True, num_workers=2):
            seen += len(numbers)
        assert seen == rows

    return step


@workload("tensorflow", "numpy")
def tensorflow_train_step(chance: Random, folder: Path) -> Step:
    """Run three training steps in a compiled TensorFlow function."""
    # Suppresses TensorFlow's notes on the processor.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    numpy, tensorflow = import_module("numpy"), import_module("tensorflow")
    draw = numpy.random.default_rng(chance.getrandbits(32))
    weights = tensorflow.Variable(draw.normal(size=(8, 1)).astype("float32"))
    anything = tensorflow.TensorSpec((None, 8), tensorflow.float32)

    def train_eagerly(batch: Any) -> Any:
        with tensorflow.GradientTape() as tape:
            error = tensorflow.matmul(batch, weights) - tensorflow.reduce_sum(batch, axis=1, keepdims=True)
            loss = tensorflow.reduce_mean(tensorflow.square(error))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    # One signature for every batch size: with a trace per size, the cache of traces would grow with each new size.
    train = tensorflow.function(train_eagerly, input_signature=[anything])

    def step() -> None:
        for _ in range(3):
            batch = draw.normal(size=(chance.randint(1, 64), 8)).astype("float32")
            loss = train(tensorflow.constant(batch))
        assert float(loss) >= 0

    return step
