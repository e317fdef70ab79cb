"""Probes: each reads the current value of one counter of this process.

The process-tree probe is the exception: it reads three counters at once. The object that reads a counter is called an
instrument. One that cannot work on this machine raises `Unavailable` from `open`, with the reason. It never reads a
silent 0.
"""
