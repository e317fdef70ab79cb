"""Run an item once per size of its axis (``scaling_budget``) or once for its peak; judge the peaks."""
