"""Read counters, such as descriptors of the process tree or resident memory of this process.

An instrument, or probe, reads one counter; that of the process tree reads three. (`Probe` is a
project's own counter.) An instrument that cannot work here raises `Unavailable` from `open`, with
the reason, and never returns 0 instead.
"""
