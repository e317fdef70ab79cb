"""Describe the environment of a measurement: versions that the figures depend on."""

from __future__ import annotations

import platform


def describe_environment(device: str = "") -> dict[str, str]:
    """Return the versions that the figures depend on, by name.

    Args:
        device: The source of device figures; empty if there are none.
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        **({"vram": device} if device else {}),
    }
