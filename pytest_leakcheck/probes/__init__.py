"""Probes: each reads one counter of this process, now; only the process tree gives three at once.

An instrument that cannot work here raises `Unavailable` from `open`, with the reason; it never reads a silent 0.
"""
