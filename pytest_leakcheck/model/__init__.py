"""Value types shared by all packages of the plugin, with their JSON form. Imports no other package of the plugin."""

from __future__ import annotations


class LeakcheckError(Exception):
    """Wrong use of the plugin. The message states what was seen and where, what is valid, and what to do.

    `LeakError`, which reports a leak, is a `pytest.fail.Exception` instead, so that ``except Exception`` cannot hide
    it.
    """
