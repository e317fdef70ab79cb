"""Probes: each reads the current value of one counter of this process.

Only the process-tree probe reads three counters at once. An instrument that cannot work on this machine raises
`Unavailable` from `open`, with the reason. It never reads a silent 0.
"""
