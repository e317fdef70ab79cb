"""Leaks and clean work of JAX on a real accelerator. ``vram.py`` runs this file and checks the verdicts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.vram_budget(0)
WEIGHTS = jnp.ones((256, 256))
KEPT: list[Any] = []


@jax.jit  # type: ignore[untyped-decorator]
def loss_of(batch: Any, weights: Any) -> Any:
    """Return the loss of a linear model."""
    return ((batch @ weights) ** 2).mean()


class TestLeaky:
    """Each test retains device memory, or allocates too much of it."""

    def test_keeps_its_loss(self) -> None:
        KEPT.append(loss_of(jnp.ones((64, 256)), WEIGHTS))

    def test_keeps_an_array(self) -> None:
        KEPT.append(jnp.ones((256, 256)) * 2)

    @pytest.mark.vram_budget("4 KiB", peak="2 MiB")
    def test_peak_above_its_limit(self) -> None:
        jnp.ones((1024, 1024)).block_until_ready()


class TestClean:
    """Each test releases the device memory that it allocates."""

    def test_reads_its_loss(self) -> None:
        float(loss_of(jnp.ones((64, 256)), WEIGHTS))

    def test_gradient(self) -> None:
        jax.grad(loss_of, argnums=1)(jnp.ones((64, 256)), WEIGHTS).block_until_ready()
