"""Run a bundled incident in subprocesses, show its output, and check what it reports."""
