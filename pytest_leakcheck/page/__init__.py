"""Values in, one self-contained HTML page and its picture out. Needs the extra ``report``: jinja2 and matplotlib."""
