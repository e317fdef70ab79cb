"""What a repetition has opened goes with it, and waits for no collection of garbage."""

from __future__ import annotations

import gc
import weakref

from pytest_leakcheck.runner.sampler import Sampler


def test_a_sampler_is_freed_without_the_collector_though_resources_are_missing() -> None:
    """Each test of a suite has one. In a circle with the error of a missing resource, 635 KB wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        sampler = Sampler({"fd", "vram", "arrow", "disk"}, {}, capacity=10)
        assert sampler.instruments.missing
        assert all(error.__context__ is None for error in sampler.instruments.missing.values())
        gone = weakref.ref(sampler.samples)
        sampler.close()
        del sampler
        assert gone() is None
    finally:
        gc.enable()
