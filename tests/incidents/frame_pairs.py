"""How incident 1's frame pairs behave. `test_tf_data_pipeline` runs this in a separate process: it loads TensorFlow."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["KERAS_BACKEND"] = "torch"

import psutil
import pytest
import tensorflow as tf
import torch
from tensorflow.python.framework import ops

from leakcheck_incidents.tf_data_pipeline import fixed, leaky, persistent
from leakcheck_incidents.tf_data_pipeline.episodes import synthetic_episodes
from leakcheck_incidents.tf_data_pipeline.memory import ShuffleMemory
from leakcheck_incidents.tf_data_pipeline.pairs import SHAPE, EpochPairs, drawn_pairs, nested_pairs
from leakcheck_incidents.tf_data_pipeline.registry import keeps_functions

# 16 episodes, of which 4 were broken off; 6 frames at an offset of 2 make 4 pairs.
EPISODES = synthetic_episodes(16)
PAIRS = 12 * 4


def threads() -> int:
    return psutil.Process().num_threads()


def until(holds: Callable[[], bool]) -> bool:
    """Threads of TensorFlow end, and fill their buffers, a little later."""
    deadline = time.monotonic() + 600
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def live_epochs() -> int:
    gc.collect()
    return sum(type(one) is EpochPairs for one in gc.get_objects())


def made_by(module: Any, *, episodes: Any = EPISODES, seed: int = 0, source: Any = drawn_pairs) -> Any:
    return module.GeneratorDataset(source(episodes, seed), tf.TensorSpec(SHAPE, tf.uint8), buffer=4)


@pytest.fixture
def dataset() -> Iterator[fixed.GeneratorDataset]:
    dataset = made_by(fixed)
    yield dataset
    dataset.close()


def test_both_give_the_same_pairs_and_each_epoch_another_order() -> None:
    ours, theirs = (made_by(one) for one in (fixed, leaky))
    epochs = []
    for _ in range(2):
        reread, original = torch.stack(list(ours)), torch.stack(list(theirs))
        assert reread.shape == (PAIRS, 2, 256, 256, 3)
        assert reread.dtype == torch.uint8
        assert torch.equal(reread, original)
        epochs.append(reread)
    assert not torch.equal(*epochs)


def test_a_nested_source_gives_pairs_of_the_episodes_that_are_long_enough() -> None:
    assert len(list(made_by(fixed, source=nested_pairs))) == PAIRS


def test_one_pipeline_for_all_epochs_shuffles_each_of_them_and_can_be_dropped() -> None:
    dataset = made_by(persistent)
    epochs = [torch.stack(list(dataset)) for _ in range(2)]
    assert [len(one) for one in epochs] == [PAIRS, PAIRS]
    assert not torch.equal(*epochs)
    pipeline = dataset._cached
    next(iter(dataset))
    assert dataset._cached is pipeline
    dataset.cleanup()
    assert len(list(dataset)) == PAIRS


def test_any_generator_function_and_signature_do() -> None:
    def squares(epoch: int) -> Iterator[dict[str, Any]]:
        for number in range(10):
            yield {"epoch": epoch, "square": [number**2, number]}

    signature = {"epoch": tf.TensorSpec((), tf.int64), "square": tf.TensorSpec((2,), tf.float32)}
    dataset = fixed.GeneratorDataset(squares, signature, buffer=3)
    for epoch in (1, 2):
        items = list(dataset)
        assert {int(one["epoch"]) for one in items} == {epoch}
        assert sorted(one["square"].tolist() for one in items) == [[n**2, n] for n in range(10)]


def test_no_dataset_takes_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: TensorFlow for the CPU, installed here, has no GPU to hide."""
    hidden = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: hidden.append(given))
    made_by(leaky)
    made_by(fixed)
    assert hidden == [([], "GPU")] * 2


@pytest.mark.parametrize("buffer", [2, 30, 100])
def test_a_shuffle_buffer_moves_items_as_far_as_computed(buffer: int) -> None:
    numbers = tf.data.Dataset.range(20_000).shuffle(buffer, seed=1).as_numpy_iterator()
    moved = sum(abs(int(number) - place) for place, number in enumerate(numbers)) / 20_000
    assert moved == pytest.approx(ShuffleMemory.displacement(buffer), rel=0.05)


def in_zip(dataset: fixed.GeneratorDataset) -> None:
    for _both in zip(dataset, range(2), strict=False):
        pass


def to_the_end(dataset: fixed.GeneratorDataset) -> None:
    assert len(list(dataset)) == PAIRS


@pytest.mark.parametrize("read", [in_zip, to_the_end])
def test_an_epoch_that_is_left_holds_nothing(
    dataset: fixed.GeneratorDataset, read: Callable[[fixed.GeneratorDataset], None]
) -> None:
    before = threads()
    read(dataset)
    assert until(lambda: threads() <= before)
    assert live_epochs() == 0


def test_a_reader_that_is_kept_holds_nothing_once_the_dataset_is_closed(dataset: fixed.GeneratorDataset) -> None:
    before = threads()
    kept = zip(dataset, range(PAIRS), strict=True)
    next(kept)
    assert threads() > before
    assert live_epochs() == 1
    dataset.close()
    dataset.close()
    assert until(lambda: threads() <= before)
    assert live_epochs() == 0
    with pytest.raises(ValueError, match="the dataset was closed"):
        next(kept)


def test_the_next_epoch_takes_the_place_of_the_last(dataset: fixed.GeneratorDataset) -> None:
    readers = []
    for _ in range(4):
        readers.append(iter(dataset))
        next(readers[-1])
    assert live_epochs() == 1
    for reader in readers[:-1]:
        with pytest.raises(ValueError, match="read from an epoch that has ended"):
            next(reader)
    # Those that ended have not taken the last one with them.
    assert len(list(readers[-1])) == PAIRS - 1


def test_a_validation_in_the_midst_leaves_the_training_alone(dataset: fixed.GeneratorDataset) -> None:
    validation = made_by(fixed, episodes=EPISODES[:8], seed=1)
    seen = 0
    for step, _pair in enumerate(dataset):
        seen += 1
        if step % 16 == 0:
            assert sum(1 for _pair in validation) == 6 * 4
    assert seen == PAIRS


def test_closing_inside_a_graph_is_refused(dataset: fixed.GeneratorDataset) -> None:
    """TensorFlow gives an iterator that is dropped there never back."""
    reader = iter(dataset)
    next(reader)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def traced() -> Any:
        dataset.close()

    with pytest.raises(RuntimeError, match="close the dataset, and start its epochs, outside"):
        traced()
    next(reader)
    dataset.close()
    assert live_epochs() == 0


@pytest.mark.skipif(not keeps_functions(), reason="this TensorFlow keeps no functions")
def test_the_registry_has_three_functions_more_for_each_epoch() -> None:
    tf.compat.v1.reset_default_graph()
    dataset = made_by(leaky)
    counts = []
    for _ in range(3):
        next(iter(dataset))
        counts.append(len(ops.get_default_graph()._py_funcs_used_in_graph))
    assert counts == [3, 6, 9]
    assert live_epochs() == 3
    made_by(fixed).close()
    assert live_epochs() == 0
