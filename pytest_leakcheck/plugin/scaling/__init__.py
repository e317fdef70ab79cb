"""Run an item once per size of its axis or once for its peak; judge the peaks."""
