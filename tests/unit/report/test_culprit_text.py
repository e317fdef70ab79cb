"""What is known of a cause: as a value, as rows of a report, and as a fingerprint that other tests share."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PureWindowsPath

import pytest

from pytest_leakcheck.model.culprit import (
    CreationPath,
    Culprit,
    Owner,
    Share,
    Site,
    Step,
    fingerprint,
    own_line,
    short_file,
)
from pytest_leakcheck.report.finding_text import (
    ARROW,
    cycle_text,
    headline_of_culprit,
    holder_rows,
    origin_rows,
    place,
    references,
)

TEST = Site("/project/tests/test_decode.py", 12, "test_decode", "frames()")
FRAMES = Site("/project/decode/loader.py", 41, "frames", "open()")
OPEN = Site("/venv/lib/python3.11/site-packages/av/container.py", 7, "open", "fopen()")
OWNER = Owner(
    "loader._loader.cache",
    "module loader",
    (
        Step("module loader", "_loader"),
        Step("Loader", ".cache"),
        Step("dict of 20", "[a str of 8]", suspect=True),
    ),
    "av.container.InputContainer",
    1.0,
)
CULPRIT = Culprit(
    "fd",
    CreationPath((TEST, FRAMES, OPEN), FRAMES, "call"),
    owner=OWNER,
    source="container = av.open(path)",
)
UNHELD = replace(CULPRIT, owner=None)


def rows(culprit: Culprit, width: int = 65) -> list[tuple[str, str]]:
    path = [("", text + (ARROW + note if note else "")) for text, note in references(culprit.owner, width)]
    return [*origin_rows(culprit, width), *holder_rows(culprit), *path]


def text(culprit: Culprit) -> str:
    return "\n".join(f"{label:<9}{line}" for label, line in rows(culprit))


def test_the_rows_name_where_it_is_made_and_who_holds_it() -> None:
    assert (
        text(CULPRIT)
        == """\
opened   decode/loader.py:41 in frames()
           container = av.open(path)
         inside av/container.py:7 fopen()
         called from tests/test_decode.py:12 in test_decode()
held by  loader._loader.cache
         module loader
         └ _loader → Loader
           └ .cache → dict of 20   <- grows by 1.0/iter
             └ [a str of 8] → av.container.InputContainer"""
    )
    assert headline_of_culprit(CULPRIT) == ("loader.py:41", "open()")


def test_a_package_is_named_with_its_file() -> None:
    site = Site("/project/toxpkg/__init__.py", 3, "load")
    assert headline_of_culprit(Culprit("fd", CreationPath((site,), site))) == ("toxpkg/__init__.py:3", "load()")


def test_owners_that_hold_a_share_each_are_all_named() -> None:
    other = replace(OWNER, name="loader.SIZES", gained=2.0)
    assert list(holder_rows(replace(CULPRIT, others=(other,)))) == [
        ("held by", "loader._loader.cache (+1.0/iter)"),
        ("", "and loader.SIZES (+2.0/iter)"),
    ]
    assert list(holder_rows(CULPRIT)) == [("held by", "loader._loader.cache")]


def test_without_a_line_the_owner_is_named() -> None:
    assert headline_of_culprit(replace(CULPRIT, where=None)) == ("held by loader._loader.cache", "")


def test_what_is_not_resolved_says_why() -> None:
    unknown = Culprit("heap", unresolved={"site": "allocated here and freed elsewhere", "owner": "no Python object"})
    assert (
        text(unknown)
        == """\
allocatednot resolved: allocated here and freed elsewhere
held by  not resolved: no Python object"""
    )
    assert headline_of_culprit(unknown) == ("", "")
    assert text(Culprit("fd")) == ""


def test_the_line_that_keeps_it_and_the_cycle_have_rows_of_their_own() -> None:
    kept = replace(FRAMES, line=44)
    shown = text(Culprit("fd", kept=kept, cycle=("InputContainer", "VideoStream")))
    assert (
        shown
        == """\
kept     decode/loader.py:44 in frames()
cycle    InputContainer → VideoStream → InputContainer"""
    )
    assert cycle_text(Culprit("fd", cycle=("A",))) == "A → A"
    assert cycle_text(Culprit("fd", cycle=("A", "B", "C"))) == "A → B → C → A"
    assert cycle_text(Culprit("fd")) == ""


@pytest.mark.parametrize(
    ("phase", "fixture", "said"),
    [
        ("setup", "pipeline", "in fixture pipeline, set-up, not in the test function itself"),
        ("", "pipeline", "in fixture pipeline, not in the test function itself"),
        ("teardown", "", "in tear-down, not in the test function itself"),
        ("call", "", ""),
    ],
)
def test_a_fixture_is_blamed_in_place_of_the_test(phase: str, fixture: str, said: str) -> None:
    where = CreationPath((FRAMES,), FRAMES, phase, fixture)  # type: ignore[arg-type]  # of the phases
    assert said in text(Culprit("fd", where))
    assert said or "innocent" not in text(Culprit("fd", where))


def test_a_caller_is_shown_once() -> None:
    """A generator expression has the place of the function around it, as has one that calls itself."""
    inner = replace(TEST, call="test_decode()")
    where = CreationPath((TEST, inner, inner, FRAMES), FRAMES, "call")
    assert text(Culprit("fd", where)).count("called from") == 1


def test_the_child_process_of_a_line_is_shown() -> None:
    where = CreationPath((TEST, FRAMES), FRAMES, process="2 child processes, such as python")
    assert "\n         in 2 child processes, such as python" in text(Culprit("fd", where))
    assert "child process" not in text(Culprit("fd", replace(where, process="")))


def test_the_largest_share_of_a_peak_is_shown_only_where_the_line_is_not_known() -> None:
    where = CreationPath((TEST, FRAMES), FRAMES, "call")
    share = Share(where, 4 << 20, 94 << 20, "data = path.read_bytes()")
    unknown = Culprit("rss", unresolved={"site": "no line of Python allocated half of it"}, share=share)
    assert (
        text(unknown)
        == """\
allocatednot resolved: no line of Python allocated half of it
largest  decode/loader.py:41 in frames()
           data = path.read_bytes()
         called from tests/test_decode.py:12 in test_decode()
         Python allocated 4.0 MiB of 94.0 MiB there; the rest is not resolved"""
    )
    assert "largest" not in text(Culprit("rss", where, share=share))


def test_a_long_path_loses_its_middle_and_a_long_line_its_middle() -> None:
    path = tuple(Step(f"Node{n}", f".next{n}") for n in range(30))
    shown = rows(Culprit("object", owner=Owner("case.HEAD", "module case", path, "Node30", 0.0)), 40)
    assert len(shown) == 11
    assert "22 more references" in shown[6][1]
    assert max(len(line) for _label, line in shown) <= 40


def test_a_file_below_this_folder_is_shown_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert place(Site(str(tmp_path / "src" / "decode" / "loader.py"), 3, "f")) == "src/decode/loader.py:3"
    assert place(Site(f"{tmp_path}-2/loader.py", 3, "f")) == f"{tmp_path.name}-2/loader.py:3"


def named(culprit: Culprit | None, test: str = "tests/test_a.py::test_b") -> str:
    return fingerprint(test, "fd", culprit)


def test_a_fingerprint_is_of_the_cause_and_not_of_the_test_the_machine_or_the_line() -> None:
    elsewhere = replace(FRAMES, file="/home/me/tmpx1/decode/loader.py", line=77)
    moved = replace(UNHELD, where=CreationPath((replace(TEST, line=3), elsewhere, OPEN), elsewhere, "call"))
    assert named(moved) == named(UNHELD) == named(UNHELD, "tests/test_a.py::test_c")
    assert re.fullmatch(r"[0-9a-f]{6}-fd-loader-open", named(UNHELD))


def test_another_cause_has_another_fingerprint() -> None:
    other = replace(UNHELD, source="container = av.open(other)")
    assert named(other) != named(UNHELD)
    assert fingerprint("t", "thread", UNHELD) != fingerprint("t", "fd", UNHELD)


def test_the_owner_is_the_cause_and_without_owner_and_site_the_test() -> None:
    held = Culprit("heap", owner=OWNER)
    # Which of its lines is found first depends on the load.
    assert named(held) == named(held, "tests/test_a.py::test_c") == named(CULPRIT)
    threads = [replace(held, owner=replace(OWNER, name=f"thread 'waitpid-{n}'._args")) for n in (7, 12)]
    assert named(threads[0]) == named(threads[1]) != named(held)
    assert named(None) == named(Culprit("heap"))
    assert named(None) != named(None, "tests/test_a.py::test_c")
    assert named(None).endswith("-fd")


def test_which_constructor_came_first_makes_no_other_cause() -> None:
    def created(*inner: Site, source: str = "") -> str:
        path = (TEST, *inner)
        site = next(one for one in reversed(path) if "site-packages" not in one.file)
        return named(Culprit("object", CreationPath(path, site), source=source))

    factory = Site("/project/app/pools.py", 8, "make", "Pool.__init__()")
    pool = Site("/project/app/pools.py", 14, "Pool.__init__", "Lock.__init__()")
    lock = Site("/project/app/locks.py", 3, "Lock.__init__")
    own = {created(factory, pool), created(factory, pool, lock), created(factory, source="return Pool(Lock())")}
    assert len(own) == 1
    # A package that a test calls: its outermost constructor.
    sdk = "/venv/lib/python3.11/site-packages/sdk/trace.py"
    provider, processor = Site(sdk, 5, "Provider.__init__", "Processor.__init__()"), Site(sdk, 9, "Processor.__init__")
    assert created(provider) == created(provider, processor)
    assert created(provider) != created(Site(sdk, 5, "Other.__init__", "Processor.__init__()"), processor)


CLICK = "/venv/lib/python3.11/site-packages/click/testing.py"
WRAP = Site(CLICK, 70, "_NamedTextIOWrapper.__init__", "super().__init__()")
STREAMS = Owner("click._compat._default_text_stdout closure cell 'cache'", "module click._compat", (), "x", 1.0)


def reached_from(test: str, *, owner: Owner | None) -> Culprit:
    """A leak of a package: the line of the project is the test's own, in each of many tests."""
    line = Site(f"/project/tests/{test}.py", 9, f"{test}_function", "invoke()")
    return Culprit(
        "object", CreationPath((line, WRAP, Site("/usr/lib/python3.11/io.py", 5, "open", "")), line), owner=owner
    )


def test_a_leak_of_a_package_is_one_cause_in_all_tests_that_reach_it() -> None:
    held = fingerprint("t", "object", reached_from("test_a", owner=STREAMS))
    assert held == fingerprint("u", "object", reached_from("test_b", owner=STREAMS))
    assert held.endswith("-object-click-_default_text_stdout")
    # Without an owner, the innermost line of the package is the cause, and not the one of the standard library below.
    lost = fingerprint("t", "object", reached_from("test_a", owner=None))
    assert lost == fingerprint("u", "object", reached_from("conftest", owner=None))
    assert lost.endswith("-object-testing-_NamedTextIOWrapper")
    assert lost != held


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/usr/lib/python3.11/pathlib.py", False),
        ("C:\\Python312\\Lib\\pathlib.py", False),
        ("<frozen os>", False),
        ("/home/me/lib/loader.py", True),
        # Many tests may call what the owner keeps.
        ("/project/tests/test_it.py", False),
        ("/usr/lib/python3/dist-packages/yaml/reader.py", False),
    ],
)
def test_a_line_of_the_project_is_told_by_its_file(file: str, own: bool) -> None:
    line = Site(file, 3, "read", "open()")
    assert (own_line(Culprit("fd", CreationPath((line,), line), owner=OWNER)) is not None) is own


def test_a_file_of_windows_is_shown_without_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.model.culprit.PurePath", PureWindowsPath)
    assert short_file("C:\\venv\\Lib\\site-packages\\av\\container\\input.py") == "av/container/input.py"
    assert short_file("D:\\shop\\loader.py") == "loader.py"
    assert short_file("D:\\shop\\carts\\__init__.py") == "carts/__init__.py"


def test_a_line_of_a_test_counts_if_the_test_itself_keeps_what_it_creates() -> None:
    line = Site("/project/tests/test_it.py", 3, "test_a", "open()")
    assert own_line(Culprit("fd", CreationPath((line,), line), owner=replace(OWNER, name="test_it.KEPT"))) == line
    # Without an owner, the line is all that is known.
    assert own_line(Culprit("fd", CreationPath((line,), line))) == line


def test_the_fingerprint_has_no_part_of_a_key_of_the_running_program() -> None:
    first, second = (replace(STREAMS, name=f"app.SESSIONS[a str of {length}].seen") for length in (9, 10))
    named = fingerprint("t", "object", reached_from("test_a", owner=first))
    assert named == fingerprint("t", "object", reached_from("test_a", owner=second))
    assert named.endswith("-object-app-seen")
