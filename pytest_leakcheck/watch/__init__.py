"""Watch the processes of a running program, from another process or from its training loop.

A watch reports what the processes hold, how fast that grows, and when a limit will be reached.
"""
