"""Render values as one self-contained HTML page. Needs jinja2, of the extra ``report``."""
