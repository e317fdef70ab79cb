"""Render one self-contained HTML page from values; this needs the extra ``report``."""
