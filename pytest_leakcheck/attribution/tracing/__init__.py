"""Find the line that creates a leak.

Calls, lines and allocations are traced while the test is repeated a few more times.
"""
