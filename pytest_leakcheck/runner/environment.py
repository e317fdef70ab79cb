"""Describe the environment of a measurement: versions that a figure depends on."""

from __future__ import annotations

import platform


def describe_environment(device: str = "") -> dict[str, str]:
    """Versions that a figure depends on.

    Args:
        device: Where figures of devices come from.
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        **({"vram": device} if device else {}),
    }
