"""Run a bundled incident in subprocesses, and check its findings."""
