"""List the suites that `ci/suites.py` samples, with their releases and what they need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Installed into each environment beside the checkout, which is installed without its dependencies.
COMMON: Final = ("pytest==9.2.0", "psutil==7.2.2")


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite of a released package.

    Attributes:
        package: The distribution that is tested; empty if the suite is generated here.
        tests: The packages whose tests are collected (`pytest --pyargs`); empty if the tests are in the sdist.
        requires: What the tests need beside the package, with releases.
        options: Arguments of pytest without which the suite does not run as its authors run it.
        left_out: Names of test modules that are not collected, as a pattern, with the reason.
        variables: Of the environment, without which the suite does not run.
    """

    name: str
    package: str
    release: str
    tests: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Everything that is installed, except for the checkout."""
        own = (f"{self.package}=={self.release}",) if self.package else ()
        return (*COMMON, *own, *self.requires)


# Tests that pass and do nothing: what judging costs by itself.
EMPTY: Final = Suite("empty", package="", release="")

SUITES: Final = (
    Suite("numpy.lib", "numpy", "2.4.6", tests=("numpy.lib",), requires=("hypothesis==6.170.17",)),
    Suite(
        "pandas io",
        "pandas",
        "3.1.1",
        tests=("pandas.tests.io",),
        requires=(
            "numpy==2.4.6",
            "hypothesis==6.170.17",
            "pyarrow==26.0.1",
            "lxml==6.1.3",
            "html5lib==1.1",
            "beautifulsoup4==4.15.0",
            "openpyxl==3.1.5",
            "xlsxwriter==3.3.1",
            "sqlalchemy==2.1.9",
            "tables==3.11.1",
            "jinja2==3.1.6",
        ),
        options=("-m", "not network and not db"),
    ),
    Suite(
        "aiohttp",
        "aiohttp",
        "3.14.5",
        requires=(
            "pytest-mock==3.17.0",
            "re-assert==1.1.0",
            "freezegun==1.5.5",
            "trustme==1.2.1",
            "proxy.py==2.4.10",
            "blockbuster==1.5.29",
            "isal==1.9.1",
            "zlib-ng==1.1.0",
            "pytest-timeout==2.4.0",
            # The filters of warnings in the configuration of the sdist import it.
            "coverage==7.17.4",
        ),
        # The configuration of the sdist measures coverage and distributes the tests; the rest of its options are these.
        options=("-o", "addopts=", "-m", "not dev_mode and not autobahn and not internal"),
        left_out={
            "test_benchmarks_*.py": "need pytest-codspeed",
            "test_autobahn.py": "starts containers",
            "test_worker.py": "needs gunicorn",
        },
    ),
    Suite(
        "scikit-learn",
        "scikit-learn",
        "1.9.1",
        tests=("sklearn",),
        requires=("numpy==2.4.6", "scipy==1.17.1", "pandas==3.1.1", "joblib==1.6.0", "threadpoolctl==3.8.0"),
    ),
    Suite(
        "starlette",
        "starlette",
        "1.10.0",
        requires=(
            "httpx==0.28.1",
            "httpx2==2.16.2",
            "anyio==4.16.0",
            "trio==0.35.0",
            "jinja2==3.1.6",
            "itsdangerous==2.2.0",
            "python-multipart==0.0.34",
            "pyyaml==6.0.4",
            "opentelemetry-sdk==1.45.2",
            "blockbuster==1.5.29",
            "coverage==7.17.4",
        ),
        left_out={"test_benchmarks*": "need pytest-codspeed"},
    ),
    Suite(
        "requests",
        "requests",
        "2.34.2",
        requires=(
            "pytest-httpbin==2.1.0",
            "httpbin==0.10.4",
            "pytest-mock==3.17.0",
            "trustme==1.2.1",
            "pysocks==1.7.1",
        ),
    ),
    Suite(
        "lmdb",
        "lmdb",
        "3.0.0",
        # A child process returns from this test, and runs the rest of the suite as well.
        options=("-k", "not test_cached_txn_across_fork"),
    ),
    Suite(
        "hypercorn",
        "hypercorn",
        "0.18.0",
        requires=("pytest-asyncio==1.5.0", "pytest-trio==0.8.0", "trio==0.35.0", "httpx==0.28.1", "h2==4.4.1"),
        # The configuration of the sdist measures coverage.
        options=("-o", "addopts="),
    ),
    Suite(
        "diskcache",
        "diskcache",
        "5.6.3",
        left_out={"test_djangocache.py": "needs Django", "test_doctest.py": "needs Django"},
    ),
    Suite(
        "einops",
        "einops",
        "0.8.2",
        tests=("einops.tests",),
        requires=("numpy==2.4.6",),
        variables={"EINOPS_TEST_BACKENDS": "numpy"},
    ),
    Suite("lxml", "lxml", "6.1.3", requires=("html5lib==1.1",)),
    Suite("tinydb", "tinydb", "4.9.0", requires=("pyyaml==6.0.4",)),
    Suite("pebble", "pebble", "5.2.3"),
    Suite("waitress", "waitress", "3.0.2", options=("-o", "addopts=-W always")),
    Suite(
        "anyio",
        "anyio",
        "4.16.0",
        requires=(
            "trio==0.35.0",
            "hypothesis==6.170.17",
            "pytest-mock==3.17.0",
            "pytest-timeout==2.4.0",
            "trustme==1.2.1",
            "truststore==0.10.5",
            "uvloop==0.23.0",
            "blockbuster==1.5.29",
            "coverage==7.17.4",
            # Of releases before 4.12.
            "exceptiongroup==1.3.1",
        ),
        # The plugin of releases before 4.15 imports a name that this pytest has renamed.
        options=("-m", "not network", "-W", "ignore::pytest.PytestRemovedIn10Warning"),
    ),
    Suite(
        "attrs",
        "attrs",
        "26.1.0",
        requires=("hypothesis==6.170.17", "cloudpickle==3.1.3", "pympler==1.1", "pytest-xdist==3.8.0"),
    ),
    Suite(
        "cattrs",
        "cattrs",
        "26.2.1",
        requires=(
            "hypothesis==6.170.17",
            "immutables==0.21",
            "pytest-benchmark==5.3.1",
            "pytest-xdist==3.8.0",
            "msgspec==0.22.0",
            "orjson==3.13.0",
            "ujson==6.1.0",
            "pymongo==4.20.1",
            "tomlkit==0.15.2",
            "cbor2==6.3.0",
            "msgpack==1.2.4",
            "pyyaml==6.0.4",
        ),
    ),
    Suite("tornado", "tornado", "6.6.1", tests=("tornado.test",)),
    Suite(
        "httpx",
        "httpx",
        "0.28.1",
        requires=(
            "uvicorn==0.54.0",
            "trio==0.35.0",
            "trustme==1.2.1",
            "chardet==7.7.0",
            "brotli==1.2.1",
            "zstandard==0.25.0",
            "cryptography==50.0.2",
            "socksio==1.0.0",
            "h2==4.4.1",
            "click==8.5.1",
            "rich==15.0.0",
            "pygments==2.21.0",
        ),
        options=("-m", "not network"),
        left_out={"test_whatwg.py": "opens a file of the sdist relative to the working folder"},
    ),
    Suite(
        "multidict",
        "multidict",
        "7.2.1",
        # The configuration of the sdist measures coverage, and leaves out the tests with Hypothesis.
        options=("-o", "addopts=", "-m", "not hypothesis"),
        left_out={
            "test_*benchmarks.py": "need pytest-codspeed",
            "test_leaks.py": "looks for leaks itself, in processes of its own",
            "test_mypy.py": "needs mypy",
        },
    ),
    EMPTY,
)
