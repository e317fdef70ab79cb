"""Find the objects that hold what leaks, by searching the Python heap."""
