"""Run an item once per size of its axis, or once for its peak, and judge the peaks."""
