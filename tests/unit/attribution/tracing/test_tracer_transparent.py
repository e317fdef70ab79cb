"""Random programs do under the tracer what they do without it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traced import PLAIN, Counting, trace

_DEPTH = 3


@st.composite
def bodies(draw: st.DrawFn, depth: int = _DEPTH) -> list[str]:
    count = draw(st.integers(1, 3))
    return [line for _ in range(count) for line in draw(statements(depth))]


@st.composite
def statements(draw: st.DrawFn, depth: int) -> list[str]:
    simple = ["note(len(str(x)))", "x += 1", "if x % 3 == 0: raise KeyError(x)", "x = max(x, 2)", "note(helper(x))"]
    nested = ["try", "finally", "with", "for", "generator", "comprehension", "recursion", "function", "thread", "throw"]
    kind = draw(st.sampled_from(simple + (nested if depth else [])))
    if kind in simple:
        return [kind]
    inside = ["    " + line for line in draw(bodies(depth - 1))]
    name = f"f{draw(st.integers(0, 99))}"
    head = [f"def {name}(x, fuel=2):", "    note('in')", *inside]
    programs = {
        "try": ["try:", *inside, "except Exception as error:", "    note(type(error).__name__)"],
        "finally": ["try:", *inside, "finally:", "    note('finally')"],
        "with": ["with Context(note):", *inside],
        "for": ["for x in range(x % 3):", *inside],
        "comprehension": [
            "note([helper(y) for y in range(x % 4)])",
            "note(sorted({y: -y for y in (3, 1)}, key=lambda y: -y))",
        ],
        "generator": [
            *head,
            "    yield x",
            *inside,
            "    yield x + 1",
            f"for y in {name}(x):",
            "    note(y)",
            "    break",
        ],
        "throw": [
            *head,
            "    yield x",
            f"y = {name}(x)",
            "note(next(y, None))",
            "try:",
            "    note(y.throw(ValueError))",
            "except (ValueError, StopIteration): note('thrown')",
        ],
        "recursion": [*head, f"    return {name}(x - 2, fuel - 1) if fuel else 0", f"note({name}(x))"],
        "thread": [*head, f"note(in_thread({name}, x))"],
        "function": [*head, "    return x", f"note({name}(x))"],
    }
    return programs[kind]


_PRELUDE = """
import threading

class Context:
    def __init__(self, note): self.note = note
    def __enter__(self): self.note('enter')
    def __exit__(self, kind, error, traceback):
        self.note(kind and kind.__name__)
        return kind is KeyError

def helper(n):
    return n if n < 2 else helper(n - 1) + 1

def in_thread(function, x):
    results = []
    def run():
        try:
            results.append(function(x))
        except Exception as error:
            results.append(type(error).__name__)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return [result if isinstance(result, (int, str)) else type(result).__name__ for result in results]

def main(note, x):
"""


def run_program(source: str) -> list[object]:
    notes: list[object] = []
    names: dict[str, Any] = {}
    exec(compile(source, "<program>", "exec"), names)

    def note(value: object) -> None:
        notes.append(value if isinstance(value, (int, str, list)) else type(value).__name__)

    try:
        names["main"](note, 4)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == "<program>":
                notes.append((type(error).__name__, traceback.tb_lineno))
            traceback = traceback.tb_next
    return notes


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_a_traced_program_does_what_it_does(body: list[str]) -> None:
    source = _PRELUDE + "\n".join("    " + line for line in body)
    plain = run_program(source)
    for plain_seconds in (PLAIN, 0.0):
        traced: list[list[object]] = []
        heard = Counting("<program>")
        tracer = trace(heard, lambda: traced.append(run_program(source)), 2, plain_seconds)  # noqa: B023
        assert traced == [plain, plain]
        assert tracer.interrupted == ""
        assert heard.events
