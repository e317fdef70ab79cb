"""``pytest-leakcheck repro``: run an incident's arms in subprocesses, stream their output, check and chart the result."""
