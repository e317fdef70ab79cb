"""Run an item in a process of its own, and bring back what it reports."""
