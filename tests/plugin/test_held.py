"""What is held: the payload before what it is in, entries by their own type, and files by the pattern of their names."""

from __future__ import annotations

from projects import Project

LEAKS = """
    import tempfile
    from pathlib import Path
    import pytest

    LEAKY = True
    KEPT, ERRORS, FILES = [], [], []

    @pytest.mark.heap_budget("16 B")
    def test_payload():
        KEPT.append([bytearray(1 << 20)])
        if not LEAKY:
            KEPT.pop()

    @pytest.mark.object_budget(0)
    def test_errors():
        try:
            {}["missing"]
        except KeyError as error:
            ERRORS.append(error)
        if not LEAKY:
            ERRORS.clear()

    @pytest.mark.fd_budget(0)
    def test_files():
        path = Path(tempfile.gettempdir(), f"part-{len(FILES)}.bin")
        FILES.append(path.open("w"))
        path.unlink()
        if not LEAKY:
            FILES.pop().close()
"""


def test_the_payload_comes_first_until_the_leak_is_fixed(project: Project) -> None:
    leaky = project.run_test(LEAKS)
    found = leaky.finding("test_payload", "heap")
    assert found["verdict"] == "leak"
    assert found["held"][0]["what"] == "bytearray"
    assert found["held"][0]["note"].startswith("1,048,6")
    errors = leaky.finding("test_errors", "object")
    assert errors["held"][0]["what"] == "KeyError"
    assert "× KeyError" in errors["owner"]["holds"]
    (files,) = leaky.finding("test_files")["held"]
    assert files["what"].endswith("/part-*.bin")
    assert files["count"] >= 17
    assert set(project.run_test(LEAKS.replace("LEAKY = True", "LEAKY = False")).verdicts.values()) == {"ok"}
