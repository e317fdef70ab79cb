"""Measure a test, a loop or a block of code, and find the cause of its growth, without importing pytest."""
