"""Measure a test, loop or block of code, and find the cause of growth, without importing pytest."""
