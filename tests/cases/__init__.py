"""Leaks beside their repairs, and clean work that is noisy: what the plugin is held to.

To add one: write the two callables in the module of their family, and a line `Case(name, kind, leaky, fixed)` in its
``CASES``. Whatever the leaky arm keeps, the case's tear-down gives back.
"""
