"""Find the line that creates a leak.

A few iterations run while calls, lines and allocations are traced.
"""
