"""Ways to break a mended implementation again: its source with one thing changed, each to be turned red by the plugin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One of them.

    Attributes:
        name: What is done wrong, as part of a module's name.
        right: A piece of the mended source.
        wrong: What stands there instead.
        test: The class of tests that turns red.
        resource: What it is red for.
    """

    name: str
    right: str
    wrong: str
    test: str
    resource: str

    def of(self, mended: str) -> str:
        """The source of the mutant.

        Raises:
            ValueError: What is to be changed stands there no longer, or more than once.
        """
        if mended.count(self.right) != 1:
            raise ValueError(f"{self.name}: {self.right!r} is {mended.count(self.right)} times in the mended source")
        return mended.replace(self.right, self.wrong)
