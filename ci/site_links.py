"""A hook of mkdocs: lead links to files outside docs/, which the site does not have, to the repository."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, *, config: Any, **_others: object) -> str:
    """Return the text of a page with such links to the branch main."""
    return markdown.replace("](../", f"]({config.repo_url}/blob/main/")
