"""Ways to break a fixed implementation again: its source with one thing changed, each to be turned red by the plugin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One of them.

    Attributes:
        name: What is done wrong, as part of a module's name.
        right: A piece of the fixed source.
        wrong: What stands there instead.
        test: The class of tests that turns red.
        resource: What it is red for.
    """

    name: str
    right: str
    wrong: str
    test: str
    resource: str

    def of(self, fixed: str) -> str:
        """The source of the mutant.

        Raises:
            ValueError: What is to be changed stands there no longer, or more than once.
        """
        if fixed.count(self.right) != 1:
            raise ValueError(f"{self.name}: {self.right!r} is {fixed.count(self.right)} times in the fixed source")
        return fixed.replace(self.right, self.wrong)
