"""Render findings as terminal text, JSON and HTML; measure and judge nothing."""
