"""Decide: from readings and budgets to verdicts and findings. Reads no counter and no clock."""
