"""Render one self-contained HTML page from values. Needs the extra ``report``."""
