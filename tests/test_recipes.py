"""What docs/recipes.md calls red: each recipe with the leak of which it speaks. tests/test_docs.py runs them as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from projects import ROOT, Project
from pytest_leakcheck import Measurement, measure

TEXT = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"(?ms)^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", TEXT))
KEEPS = {"import pytest\n": "import pytest\nKEPT = []\n"}
# Of each recipe, the resource that grows if these texts stand in place of others.
LEAKS = {
    "A DataLoader with persistent workers": (
        "process",
        KEEPS | {'(scope="module")': "", "    for (batch,)": "    KEPT.append(loader)\n    for (batch,)"},
    ),
    "A training loop": ("heap", {"loss.item()": "loss"}),
    "An upload": ("disk", {"    api =": "    import os, tempfile\n    os.close(tempfile.mkstemp()[0])\n    api ="}),
    "A pipeline of tf.data": (
        "thread",
        KEEPS | {"    assert": "    KEPT.append(iter(batches))\n    next(KEPT[-1])\n    assert"},
    ),
    "A server in a fixture": ("thread", {"        server.shutdown()\n": "", "        thread.join()": "        pass"}),
}
NOTEBOOK = "A notebook"


# On other pages, the line that a comment calls forgotten, what stands in its place, and what the report then says.
FORGOTTEN = [
    ("headroom.md", "    OPENED.pop().close()", "    pass", "fd +1.0/iter"),
    ("device-memory.md", "loss.item()", "loss", "Tensor () float32 cpu with its graph"),
    ("reference.md", "libc.free(buffer)", "pass", "heap +144 B/iter"),
    ("reference.md", "parts.pop()", "parts[-1]", "rss O(n): +1.0 MiB per shard, O(1) allowed"),
    ("reference.md", "page.on_close()", "pass", "held by test_it.OPEN"),
]


def changed(recipe: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert recipe.count(old) == 1, old
        recipe = recipe.replace(old, new)
    return recipe


def options_of(block: str) -> list[str]:
    """Return what the first line of a block adds to the command, as in tests/test_docs.py."""
    said = re.match(r"# pytest --leakcheck (.*)", block)
    return said[1].split() if said else []


def test_each_recipe_has_a_leak_here() -> None:
    assert [*LEAKS, NOTEBOOK] == list(RECIPES)


@pytest.mark.laboratory
@pytest.mark.parametrize("name", LEAKS)
def test_the_leak_of_which_a_recipe_speaks_is_red(project: Project, name: str) -> None:
    grows, changes = LEAKS[name]
    ran = project.run_test(changed(RECIPES[name], changes), *options_of(RECIPES[name]))
    assert [one["resource"] for one in ran.findings if one["verdict"] == "leak"] == [grows], ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize(("page", "line", "instead", "said"), FORGOTTEN)
def test_what_is_forgotten_is_red(project: Project, page: str, line: str, instead: str, said: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"(?ms)^```python\n(.*?)^```$", text) if line in one)
    ran = project.run_test(changed(block, {line: instead}), *options_of(block))
    assert (ran.status, said in ran.text) == (1, True), ran.text


def test_the_notebook_with_another_key_in_each_call_is_red() -> None:
    names = {"measure": measure}
    exec(
        changed(
            RECIPES[NOTEBOOK],
            {"if name not in rows:": "name = len(rows)\n    if True:", "measure(load": "found = measure(load"},
        ),
        names,
    )
    found: Measurement = names["found"]  # type: ignore[assignment]
    assert (found.finding.verdict.outcome, found.finding.verdict.resource) == ("leak", "heap")
