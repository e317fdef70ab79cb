"""Findings in, text or files out. Nothing here measures or judges."""
