"""The parts of a block and their styles: together they are the block, character by character."""

from __future__ import annotations

from pytest_leakcheck.report.colour import coloured

BLOCK = """\
fd +1.0/iter — test_it.py:5 os.open() (17 iterations)

  leak         +1.0/iter sustained over 17 iterations
  also growing object +1.0/iter, +17 so far (not judged)
               block +1.0/iter, +17 so far (not judged)
  opened       test_it.py:5 in leak()
                 def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
               called from test_it.py:13 in test_leak()
  held by      test_it.KEPT
               module test_it
               └ KEPT → list of 30   <- grows by 1.0/iter
                 └ [29] → int, 28 B each
  next         pytest --leakcheck "test_it.py::test_leak"
"""


def test_the_parts_add_up() -> None:
    lines = ["".join(part for part, _style in parts) for parts in coloured(BLOCK)]
    assert lines == BLOCK.splitlines()


def test_what_matters_stands_out() -> None:
    styles = {part.strip(): style for parts in coloured(BLOCK) for part, style in parts}
    assert styles["fd +1.0/iter — test_it.py:5 os.open() (17 iterations)"] == "verdict"
    assert styles["leak         +1.0/iter sustained over 17 iterations"] == "verdict"
    assert styles["<- grows by 1.0/iter"] == "verdict"
    assert styles["def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))"] == "source"
    assert styles['pytest --leakcheck "test_it.py::test_leak"'] == "command"
    assert {label for label, style in styles.items() if style == "label"} == {
        "also growing",
        "opened",
        "held by",
        "next",
    }
    assert styles["└ [29] → int, 28 B each"] == "plain"
