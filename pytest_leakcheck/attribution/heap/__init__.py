"""Find the objects that hold what leaks, by searching the heap of the process."""
