"""The entry point ``leakcheck``: options, configuration keys, markers, the fixture. Everything else waits for ``--leakcheck``.

Without the flag three small modules are imported, no hook that runs per test is registered, and tests run once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_leakcheck.config.settings import OPTIONS, SettingError, Settings, resolve
from pytest_leakcheck.plugin.stash import SETTINGS, SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_leakcheck.plugin.inert_fixture import Leakcheck
    from pytest_leakcheck.probes.custom_probe import Probe
    from pytest_leakcheck.probes.device import Device


_SCALING: Final = "scaling_budget"
# Spelled out, so that a plain run registers them and imports nothing for it; a test compares with `markers`.
_BUDGET: Final = (
    "{name}_budget({example}, *, per_iteration=0, {peak}over=N, unclosed='fail', reason=''): "
    "pytest-leakcheck: bound the {plural} that this test retains."
)


def _line(name: str, example: str, plural: str, *, peak: bool = True) -> str:
    return _BUDGET.format(name=name, example=example, plural=plural, peak=f"peak={example}, " if peak else "")


MARKERS: Final = (
    _line("fd", "0", "descriptors"),
    _line("thread", "0", "threads"),
    _line("process", "0", "child processes"),
    _line("shm", "0", "shared-memory entries"),
    _line("disk", "0", "temporary files"),
    _line("task", "0", "asyncio tasks"),
    _line("heap", '"1 MiB"', "bytes in use"),
    _line("object", "0", "gc objects", peak=False),
    _line("block", "0", "Python blocks"),
    _line("arrow", '"1 MiB"', "bytes in Arrow's pool"),
    _line("vram", '"1 MiB"', "bytes on the device"),
    _line("mmap", '"1 MiB"', "mapped bytes"),
    _line("rss", '"1 MiB"', "resident bytes"),
    "scaling_budget(axis, sizes, *, engine=None, reason='', rss='O(1)', ...): pytest-leakcheck: bound peaks over the sizes "
    "of an axis, which the test takes as an argument. For example scaling_budget('shards', [8, 16, 32, 64], rss='O(1)').",
    "leakcheck_ceiling(fd=256, rss='1 GiB', vram='2 GiB', by='rlimit'): pytest-leakcheck: run this test under limits, in a "
    "process of its own, until it fails for want of what it leaks. by='cgroup' limits memory as a container does.",
    "leakcheck(iterations=0, warmup=3, max_time=30, isolate=False, resources=()): pytest-leakcheck: repeat this test "
    "and judge all resources, or those named. For example leakcheck(iterations=50); the command line beats it.",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leakcheck", "leakcheck: what tests retain as they repeat")
    for option in OPTIONS:
        text = option.help if option.kind == "bool" else f"{option.help} Default: {option.default or 'none'}."
        if option.kind == "bool":
            group.addoption(option.flag, dest=option.key, action="store_true", default=None, help=text)
        else:
            group.addoption(option.flag, dest=option.key, metavar=option.metavar, default=None, help=text)
        if option.ini:
            parser.addini(option.key, text, type=option.kind, default=option.default)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_leakcheck.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if added := config.hook.pytest_leakcheck_probes(config=config):
        _add_probes(config, added)
    settings = _read_settings(config)
    config.stash[SETTINGS] = settings
    if not settings.active:
        return
    _leave_asserts_alone(config)
    from pytest_leakcheck.plugin.register import register

    register(config, settings)


def _leave_asserts_alone(config: pytest.Config) -> None:
    """Load the rest of this package as it was compiled: pytest would compile all of it anew to rewrite its asserts.

    Where bytecode is not kept, as in many a CI, that is 0.1 s in each session. pytest has no way to ask for it.
    """
    hook = config.pluginmanager.rewrite_hook
    # Neither is there with --assert=plain.
    getattr(hook, "_must_rewrite", set()).discard("pytest_leakcheck")
    getattr(hook, "_marked_for_rewrite_cache", {}).clear()


def _add_probes(config: pytest.Config, added: Iterable[Iterable[Probe | Device]]) -> None:
    from pytest_leakcheck.probes.custom_probe import Probe, ProbeError, add_probes, remove_probes

    probes = [probe for some in added for probe in some]
    config.add_cleanup(remove_probes)
    try:
        add_probes(probes)
    except ProbeError as error:
        raise pytest.UsageError(f"pytest_leakcheck_probes: {error}") from None
    for probe in probes:
        if not isinstance(probe, Probe):
            continue
        example, plural = "0" if probe.unit == "count" else '"1 MiB"', probe.as_resource().plural
        config.addinivalue_line("markers", _line(probe.name, example, plural))


@pytest.fixture
def leakcheck(request: pytest.FixtureRequest) -> Leakcheck:
    """Judge inside a test: ``steps()`` for a loop, ``budget()`` for a block, ``gauge()`` for a counter of your own.

    Without ``--leakcheck`` a loop runs one step, and the rest does nothing.
    """
    from pytest_leakcheck.plugin.fixture import make_leakcheck

    return make_leakcheck(request.node, request.config.stash[SETTINGS])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the argument of a ``scaling_budget`` its value: the smallest size, or the one that this process is for."""
    # `get_closest_marker` walks the markers of all parents, 5,400 instructions a test; the keywords hold their names already.
    if _SCALING not in metafunc.definition.keywords or metafunc.definition.get_closest_marker(_SCALING) is None:
        return
    from pytest_leakcheck.config.markers import MarkError
    from pytest_leakcheck.config.scaling_marker import read_sweep

    try:
        sweep = read_sweep(metafunc.definition.iter_markers(), metafunc.fixturenames)
    except MarkError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    if sweep.engine == "gloo" and not metafunc.config.stash[SETTINGS].active:
        from pytest_leakcheck.plugin.gloo_alone import stand_alone

        stand_alone(metafunc.config)
    size = metafunc.config.stash.get(SIZE, sweep.sizes[0])
    # One node id, measured or not.
    metafunc.parametrize(sweep.axis, [size], ids=[pytest.HIDDEN_PARAM])


def _read_settings(config: pytest.Config) -> Settings:
    """Read every key now, active or not: a wrong value is found on the first run, not on the first leak."""
    command_line: dict[str, Any] = {option.key: config.getoption(option.key) for option in OPTIONS}
    origin = config.inipath.name if config.inipath else "configuration"
    configuration: dict[str, Any] = {}
    for option in OPTIONS:
        if option.ini:
            try:
                configuration[option.key] = config.getini(option.key)
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{option.key} ({origin}): {error}") from None
    try:
        return resolve(command_line, configuration, origin)
    except SettingError as error:
        raise pytest.UsageError(str(error)) from None
