"""Find the line that makes what leaks, by tracing calls, lines and allocations of a few iterations."""
