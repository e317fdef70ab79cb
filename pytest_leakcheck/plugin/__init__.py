"""Register the options, configuration keys, markers and fixture of the plugin ``leakcheck``.

Without ``--leakcheck``, the plugin imports only a few small modules and registers no measuring
hook, and each test runs once.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_leakcheck.config.settings import (
    MAX_TIME,
    MIN_TIME,
    OPTIONS,
    SCALING,
    WARMUP,
    Settings,
    resolve,
)
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resource_table import ROWS, marker_form
from pytest_leakcheck.plugin import keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_leakcheck.plugin.inert import Leakcheck
    from pytest_leakcheck.probes.catalog import Probe
    from pytest_leakcheck.probes.device import Device


def _marker(name: str, unit: str, plural: str, *, peak: bool = True) -> str:
    return f"{marker_form(name, unit, peak=peak)}: pytest-leakcheck: bound the {plural} that this test retains."


MARKERS: Final = (
    *(_marker(row["name"], row["unit"], row["plural"], peak=row.get("peak", True)) for row in ROWS),
    "scaling_budget(axis, sizes, *, engine=None, reason='', rss='O(1)', ...): pytest-leakcheck: bound the peaks at each "
    "of these sizes, which the test takes as an argument. For example "
    "scaling_budget('shards', [8, 16, 32, 64], rss='O(1)').",
    "leakcheck_ceiling(fd=256, rss='1 GiB', vram='2 GiB'): pytest-leakcheck: run this test under limits, in a separate "
    "process, so that a leak fails in seconds.",
    f"leakcheck(iterations=0, warmup={WARMUP}, max_time={MAX_TIME:g}, min_time={MIN_TIME:g}, isolate=False, "
    "resources=(), failures=False): pytest-leakcheck: repeat this test and judge all resources, or those named. For "
    "example leakcheck(iterations=50); the command line overrides it. leakcheck(False, reason='...') leaves the test out of "
    "--leakcheck-scope=all.",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and configuration keys."""
    group = parser.getgroup("leakcheck", "leakcheck: find leaks by repeating tests")
    for option in OPTIONS:
        switch = option.kind == "bool"
        text, default = option.help, option.default
        if default is not False:
            shown = "none" if default in ("", ()) else str(default).lower()
            text = f"{text.rstrip('.')} (default: {shown})"
        if option.flagged:
            how: dict[str, Any] = (
                {"action": "store_true"} if switch else {"metavar": option.metavar}
            )
            group.addoption(option.flag, dest=option.key, default=None, help=text, **how)
        if option.ini:
            # `resolve` knows the defaults, and that a file has a key although it has the same
            # value.
            parser.addini(option.key, text, type=option.kind, default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """If measuring is requested, keep functions of `time` before a conftest.py replaces them."""
    # `pytest_configure` reports an invalid value.
    with contextlib.suppress(TypeError, ValueError):
        given = early_config.known_args_namespace
        if given.leakcheck or given.leakcheck_scope == "all" or early_config.getini("leakcheck"):
            import pytest_leakcheck.probes.clock  # noqa: F401


class HookSpecs:
    """The hooks that a project or a plugin may implement."""

    @staticmethod
    @pytest.hookspec(historic=True)
    def pytest_leakcheck_probes(config: pytest.Config) -> Iterable[Probe | Device]:  # type: ignore[empty-body]
        """Return your own counters, for example ``return [Probe("connection", read=pool.size)]``.

        The plugin judges them in addition to its own resources. If the returned list contains a
        `Device`, ``vram`` reads this device instead of the accelerators that it would find. Use
        this for a device that the plugin does not know, or for a simulated one.

        The hook is called once per process, when pytest is configured, with or without
        ``--leakcheck``. Therefore, the marker ``<name>_budget`` of each probe always exists. In a
        ``conftest.py`` that pytest loads later, as that of a package that ``--pyargs`` collects, it
        is called as the file is loaded. Keep it fast.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook `pytest_leakcheck_probes`."""
    pluginmanager.add_hookspecs(HookSpecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and probes, and with ``--leakcheck`` the hooks; read the settings."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    config.hook.pytest_leakcheck_probes.call_historic(
        partial(_add_probes, config), {"config": config}
    )
    if pytest.version_tuple < (9,):
        from pytest_leakcheck.plugin.pytest_versions import warn_of_ignored_table

        warn_of_ignored_table(config)
    settings = _read_settings(config)
    config.stash[keys.SETTINGS] = settings
    if not settings.active:
        _refuse_options_without_effect(config)
        return
    _disable_assert_rewriting(config)
    from pytest_leakcheck.plugin.item_protocol import register

    register(config, settings)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Suggest a mark of the plugin for each similar one that pytest has warned about."""
    if "warnings" not in terminalreporter.stats:
        return
    from pytest_leakcheck.config.plan import suggest
    from pytest_leakcheck.model.escaping import printable

    lines: list[str] = config.getini("markers")
    known = [line.partition("(")[0] for line in lines if "pytest-leakcheck:" in line]
    said = set()
    for warning in terminalreporter.stats["warnings"]:
        name = warning.message.partition("PytestUnknownMarkWarning: Unknown pytest.mark.")[
            2
        ].partition(" ")[0]
        if name and name not in said and (advice := suggest(name, known)):
            said.add(name)
            place = warning.get_location(config)
            terminalreporter.write_line(
                printable(f"{place}: pytest-leakcheck has no mark {name!r}. {advice}"), yellow=True
            )


def _refuse_options_without_effect(config: pytest.Config) -> None:
    """Refuse options typed without ``--leakcheck``; those in ``addopts`` serve plain runs too."""
    typed = [str(one).partition("=")[0] for one in config.invocation_params.args]
    given = [option.flag for option in OPTIONS if option.flag in typed]
    if given:
        raise pytest.UsageError(
            f"{', '.join(given)} (command line): no effect without --leakcheck: add it to judge the marked tests, or "
            "--leakcheck-scope=all to judge all tests"
        )


def _disable_assert_rewriting(config: pytest.Config) -> None:
    """Keep pytest from rewriting our asserts: without a bytecode cache, recompiling takes 0.1 s."""
    hook = config.pluginmanager.rewrite_hook
    # With --assert=plain the hook has neither attribute.
    getattr(hook, "_must_rewrite", set()).discard("pytest_leakcheck")
    getattr(hook, "_marked_for_rewrite_cache", {}).clear()


def _add_probes(config: pytest.Config, added: Iterable[Probe | Device]) -> None:
    from pytest_leakcheck.probes.catalog import Probe, ProbeError, add_probes, remove_probes

    probes = list(added)
    config.add_cleanup(remove_probes)
    try:
        add_probes(probes)
    except ProbeError as error:
        raise pytest.UsageError(f"pytest_leakcheck_probes: {error}") from None
    for probe in probes:
        if isinstance(probe, Probe):
            config.addinivalue_line(
                "markers", _marker(probe.name, probe.unit, probe.as_resource().plural)
            )


@pytest.fixture
def leakcheck(request: pytest.FixtureRequest) -> Leakcheck:
    """Check a loop with ``steps()``, a block with ``budget()``, your own counter with ``gauge()``.

    ``assert_collected()`` and ``collected()`` check single objects, also without
    ``--leakcheck``. There, ``steps(n)`` yields `n` steps and ``steps()`` one step; nothing is
    measured.
    """
    settings = request.config.stash[keys.SETTINGS]
    if not settings.active:
        from pytest_leakcheck.plugin.inert import Leakcheck

        return Leakcheck()
    from pytest_leakcheck.plugin.fixture import make_leakcheck

    return make_leakcheck(request.node, settings)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``scaling_budget``'s argument the size that this process measures, or the smallest."""
    # The keywords already contain the names of the markers of all parents, which
    # `get_closest_marker` walks.
    if (
        SCALING not in metafunc.definition.keywords
        or metafunc.definition.get_closest_marker(SCALING) is None
    ):
        return
    from pytest_leakcheck.config.scaling_marker import read_sweep

    try:
        sweep = read_sweep(metafunc.definition.iter_markers(), metafunc.fixturenames)
    except InputError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    if sweep.engine in ("gloo", "ray"):
        from pytest_leakcheck.plugin.inert import GlooAlone

        if not metafunc.config.pluginmanager.hasplugin("leakcheck-alone"):
            metafunc.config.pluginmanager.register(GlooAlone(), "leakcheck-alone")
    size = metafunc.config.stash.get(keys.SIZE, sweep.sizes[0])
    # The node id does not contain the size, so that the id is the same with and without measuring.
    metafunc.parametrize(sweep.axis, [size], ids=[pytest.HIDDEN_PARAM])


def _read_settings(config: pytest.Config) -> Settings:
    """Read all options, also without ``--leakcheck``: an invalid value fails on the first run."""
    command_line: dict[str, Any] = {
        option.key: config.getoption(option.key) for option in OPTIONS if option.flagged
    }
    origin = config.inipath.name if config.inipath else "configuration"
    configuration: dict[str, Any] = {}
    for option in OPTIONS:
        if option.ini:
            try:
                value = config.getini(option.key)
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{option.key} ({origin}): {error}") from None
            if value is not None:
                configuration[option.key] = value
    try:
        settings = resolve(command_line, configuration, origin)
        if settings.rules:
            from pytest_leakcheck.config.plan import parse_rules

            parse_rules(settings.rules)
        if settings.library:
            from pytest_leakcheck.baseline.library_leaks import parse_lines

            parse_lines(settings.library, settings.sources["library"])
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    return settings
