"""Value types shared by all packages of the plugin, with their JSON form.

They describe resources (what can leak), recordings (the readings of a test), verdicts (on one resource), findings (on a
whole test) and culprits (causes of growth). This package imports no other package of the plugin.
"""

from __future__ import annotations


class LeakcheckError(Exception):
    """Wrong use of the plugin. The message states what was seen and where, what is valid, and what to do.

    `LeakError`, which reports a leak, is not a subclass. It is a `pytest.fail.Exception`, so that a test does not hide
    it by ``except Exception``.
    """
