"""Value types shared by all packages of the plugin, with their JSON form.

They describe resources, recordings, verdicts, findings and culprits. This package imports no other package of the
plugin.
"""

from __future__ import annotations


class LeakcheckError(Exception):
    """Wrong use of this package. The message says what was seen and where, what is valid, and what to do.

    `LeakError`, a leak that was found, is not one: it is a `pytest.fail.Exception`, so that no ``except Exception`` of a
    test hides it.
    """
