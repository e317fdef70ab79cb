"""Render results as one self-contained HTML page; rendering needs the package extra ``report``."""
