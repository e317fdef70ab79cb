"""Measure and judge the peaks of an item.

The mark ``scaling_budget`` needs one run per size of its axis. The argument ``peak=`` of another budget needs one more
run after the repetition.
"""
