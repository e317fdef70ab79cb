"""Read counters, such as the descriptors of the process tree or the resident memory of this process.

The object that reads a counter is called an instrument, or a probe. It reads one counter; only the probe of the process
tree reads three at once. The class `Probe` is something else: a project's own counter, which an instrument reads.

An instrument that cannot work on this machine raises `Unavailable` from `open`, with the reason. It never returns 0
instead.
"""
