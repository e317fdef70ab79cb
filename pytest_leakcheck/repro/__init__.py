"""``pytest-leakcheck repro``: an incident's arms in processes of their own, followed while they run, told and drawn."""
