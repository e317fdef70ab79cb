"""Measure and judge the peaks of an item: a run per size of its ``scaling_budget``, or one more run for a ``peak=``."""
