"""Repeat, sample, stop: measure a test, a loop or a block, explain its growth, and diagnose a red. Does not import pytest."""
