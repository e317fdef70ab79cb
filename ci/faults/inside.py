"""The faults within a test: each a few lines of Python that disturb the process that measures.

Most are written once and multiplied: by place (set-up, body, tear-down), by what the test does besides (leak or not),
or by the function that is replaced.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from around import ANY, CLEAN, LEAKS, Fault

_IN_PLACE: Final = ("in place",)
# Longer than the 62 s after which an iteration counts as hung at --leakcheck-max-time=1.
_HANG_SECONDS: Final = 130
_PLACES: Final = ("set-up", "body", "tear-down")


def catalogue() -> list[Fault]:
    """Return all faults; their names are unique."""
    parts = (
        _ends(),
        _forks(),
        _descriptors(),
        _limits(),
        _temporary_folder(),
        _environment(),
        _signals(),
        _collector(),
        _hooks(),
        _replaced(),
        _threads(),
        _exceptions(),
        _warnings(),
        _amounts(),
        _output(),
        _names(),
        _gauges(),
        _steps(),
        _allocators(),
        _plugins(),
    )
    faults = [fault for part in parts for fault in part]
    if twice := {one.name for one in faults if sum(other.name == one.name for other in faults) > 1}:
        raise ValueError(f"used more than once: {', '.join(sorted(twice))}")
    return faults


def _placed(place: str, code: str) -> dict[str, str]:
    """Return the parts of a fault whose code runs in set-up, body or tear-down, in the fifth iteration."""
    guarded = "if now():\n" + textwrap.indent(code, "    ")
    if place == "body":
        return {"body": f"leak()\n{guarded}"}
    lines = [guarded, "yield"] if place == "set-up" else ["yield", guarded]
    fixture = "@pytest.fixture\ndef faulty():\n" + textwrap.indent("\n".join(lines), "    ")
    return {"module": fixture, "arguments": "faulty", "body": "leak()"}


def _ends() -> Iterator[Fault]:
    ways = {
        "_exit(0)": "os._exit(0)",
        "_exit(3)": "os._exit(3)",
        "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
        "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
        "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
        "abort": "os.abort()",
        "null pointer": "ctypes.string_at(0)",
        "exec": 'os.execv(sys.executable, [sys.executable, "-c", "pass"])',
        "stack overflow": "sys.setrecursionlimit(1 << 30)\ndef down(): down.__call__()\nlist(map(lambda _: down(), [0]))",
        "_exit(0) in a thread": "thread = threading.Thread(target=os._exit, args=(0,))\nthread.start()\nthread.join()",
    }
    for name, code in ways.items():
        for place in _PLACES if name in ("_exit(0)", "SIGKILL", "SIGTERM", "exec") else ("body",):
            yield Fault(
                f"{name} in {place}",
                "the process ends",
                expected=LEAKS,
                leaves=True,
                **_placed(place, code),  # type: ignore[arg-type] # all of them are strings
            )


# A test that forks in each process doubles them; this ends the third generation and all above 60.
_GUARD: Final = """
FIRST = os.getpid()
FORKS = os.path.join(os.path.dirname(PATH), "forks")

def guarded_fork():
    log = OPEN(FORKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, b".")
    count = os.fstat(log).st_size
    CLOSE(log)
    if count > 60:
        os.write(2, b"FORK BOMB")
        os.killpg(0, signal.SIGKILL)
    return os.fork()
"""


def _forks() -> Iterator[Fault]:
    process = "multiprocessing.get_context({!r}).Process(target=time.sleep, args=({},))"
    bodies = {
        "both processes return": ("guarded_fork()", ANY, True),
        "the child exits": ("if not guarded_fork():\n    sys.exit(0)", ANY, True),
        "the child raises": ("if not guarded_fork():\n    raise ValueError('child')", ANY, True),
        "the child skips": ("if not guarded_fork():\n    pytest.skip('child')", ANY, True),
        "the child raises BaseException": ("if not guarded_fork():\n    raise KeyboardInterrupt", ANY, True),
        "a child that ended is waited for": (
            "child = os.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)\nleak()",
            LEAKS,
            False,
        ),
        "a child that ended is not waited for": ("if not os.fork():\n    os._exit(0)\nleak()", LEAKS, True),
        "children stay": ("if not os.fork():\n    time.sleep(60)\n    os._exit(0)", ANY, True),
        "a daemon in another session": (
            "if not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(20)\n    os._exit(0)\nos.wait()\nleak()",
            LEAKS,
            True,
        ),
        "fork in a thread": (
            "def work():\n    child = os.fork()\n    if not child:\n        os._exit(0)\n    os.waitpid(child, 0)\n"
            "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nleak()",
            LEAKS,
            False,
        ),
        "pty.fork": (
            "import pty\nchild, master = pty.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)\nCLOSE(master)\nleak()",
            LEAKS,
            False,
        ),
        "Popen is left": ("KEPT.append(subprocess.Popen(['sleep', '60']))", LEAKS, True),
        "fork server": (f"one = {process.format('forkserver', 0)}\none.start()\none.join()\nleak()", LEAKS, True),
        "spawn": (
            f"if now():\n    one = {process.format('spawn', 0)}\n    one.start()\n    one.join()\nleak()",
            LEAKS,
            False,
        ),
        "a pool is left": ("KEPT.append(multiprocessing.get_context('fork').Pool(1))", ANY, True),
        "a pool is closed": (
            "with concurrent.futures.ProcessPoolExecutor(1) as pool:\n    pool.submit(int, 1).result()\nleak()",
            LEAKS,
            False,
        ),
        "the child kills its parent's group at the fifth": (
            "if now():\n    child = os.fork()\n    if not child:\n        os.setpgid(0, 0)\n        os._exit(0)\n    os.waitpid(child, 0)\nleak()",
            LEAKS,
            False,
        ),
        "the child closes all descriptors": (
            "child = os.fork()\nif not child:\n    os.closerange(0, 65536)\n    os._exit(0)\nos.waitpid(child, 0)\nleak()",
            LEAKS,
            False,
        ),
        "the child writes to the parent's terminal": (
            "child = os.fork()\nif not child:\n    os.write(1, b'noise')\n    os._exit(0)\nos.waitpid(child, 0)\nleak()",
            LEAKS,
            False,
        ),
    }
    for name, (body, expected, leaves) in bodies.items():
        yield Fault(
            f"fork: {name}",
            "forks",
            body,
            expected,
            module=_GUARD,
            marks="@pytest.mark.fd_budget(0)\n@pytest.mark.process_budget(0)",
            leaves=leaves,
        )


def _both(name: str, category: str, code: str, undo: str = "", **settings: object) -> Iterator[Fault]:
    """Yield a fault that changes the state of the process in the fifth iteration of a leaky and of a clean test."""
    guarded = "if now():\n" + textwrap.indent(textwrap.dedent(code).strip(), "    ")
    for kind, expected, begin in (("leaky", LEAKS, "leak()"), ("clean", CLEAN, "clean()")):
        yield Fault(f"{name} ({kind})", category, f"{begin}\n{guarded}", expected, undo=undo, **settings)  # type: ignore[arg-type]


_EXHAUST: Final = """
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    while True: OPENED.append(OPEN("/dev/null", RDONLY))
except OSError:
    pass
"""


def _descriptors() -> Iterator[Fault]:
    codes = {
        "closerange(1000, 65536)": ("os.closerange(1000, 65536)", ""),
        "closerange(3, 65536)": ("os.closerange(3, 65536)", ""),
        "closerange(0, 3)": ("os.closerange(0, 3)", ""),
        "the highest descriptor is closed": ("CLOSE(max(int(name) for name in os.listdir('/proc/self/fd')[:-1]))", ""),
        "dup2 over the plugin's": (
            "for name in os.listdir('/proc/self/fd'):\n    if int(name) > 500: os.dup2(2, int(name))",
            "",
        ),
        "descriptors are opened again elsewhere": (
            "for name in os.listdir('/proc/self/fd'):\n    if int(name) > 2:\n        with contextlib.suppress(OSError): CLOSE(int(name))\n"
            "for _ in range(20): KEPT.append(OPEN('/dev/zero', RDONLY))",
            "",
        ),
        "standard streams do not block": ("for number in range(3): os.set_blocking(number, False)", ""),
        "descriptors are inherited": (
            "for name in os.listdir('/proc/self/fd'):\n    with contextlib.suppress(OSError): os.set_inheritable(int(name), True)",
            "",
        ),
        "offsets are moved": (
            "for name in os.listdir('/proc/self/fd'):\n    if int(name) > 2:\n"
            "        with contextlib.suppress(OSError): os.lseek(int(name), 3, 0)",
            "",
        ),
        "EMFILE, then closed": (
            _EXHAUST.format(soft=300, hard="resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
            + "for number in OPENED: CLOSE(number)\nOPENED.clear()",
            "",
        ),
    }
    for name, (code, undo) in codes.items():
        yield from _both(name, "descriptors", code, undo, lasting=True)
    # These two keep descriptors: there is no clean counterpart.
    many = "leak()\nif now():\n    for number in range(900, 1024): os.dup2(2, number)"
    yield Fault("dup2 over 900 to 1023", "descriptors", many, LEAKS)
    away = "leak()\nif now():\n    KEPT.append(os.dup(1))\n    os.dup2(OPEN(os.devnull, os.O_WRONLY), 1)"
    yield Fault("dup2 of /dev/null over stdout", "descriptors", away, LEAKS, undo="os.dup2(KEPT[-1], 1)", lasting=True)
    release = "for number in OPENED: CLOSE(number)\nOPENED.clear()"
    for kind, hard in (("soft", "resource.getrlimit(resource.RLIMIT_NOFILE)[1]"), ("hard", "256")):
        code = "if now():\n" + textwrap.indent(_EXHAUST.format(soft=256, hard=hard).strip(), "    ")
        yield Fault(f"EMFILE stays, {kind}", "descriptors", code, ANY, lasting=True)
        yield Fault(
            f"EMFILE until the next test, {kind}", "descriptors", code, ANY, undo=release, lasting=kind == "hard"
        )


def _limits() -> Iterator[Fault]:
    limits = {
        "NOFILE": (20, 64),
        "FSIZE": (0, 4096),
        "AS": (1 << 20, 400 << 20),
        "DATA": (1 << 20, 400 << 20),
        "STACK": (64 << 10,),
        "NPROC": (0,),
        "CORE": (0,),
        "CPU": (600,),
        "SIGPENDING": (0,),
        "MEMLOCK": (0,),
    }
    for name, values in limits.items():
        limit = f"resource.RLIMIT_{name}"
        for value in values:
            code = f"KEPT.append(resource.getrlimit({limit}))\nresource.setrlimit({limit}, ({value}, KEPT[-1][1]))"
            # What no report can be written under is no question of measuring.
            for stays in (False, True) if name not in ("FSIZE", "AS", "DATA") else (False,):
                undo = (
                    "" if stays else f"resource.setrlimit({limit}, KEPT[-1] if isinstance(KEPT[-1], tuple) else BEFORE)"
                )
                module = f"BEFORE = resource.getrlimit({limit})\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
                title = f"RLIMIT_{name}={value}{', stays' if stays else ''}"
                # In place, the tests after it would themselves run out of descriptors.
                modes = ("isolated",) if name == "NOFILE" and stays else ("in place", "isolated")
                yield from _both(title, "limits", code, undo, module=module, lasting=stays, modes=modes)


def _temporary_folder() -> Iterator[Fault]:
    codes = {
        "deleted": ("shutil.rmtree(tempfile.gettempdir())", ""),
        "deleted until the next test": (
            "shutil.rmtree(tempfile.gettempdir())",
            "os.makedirs(tempfile.gettempdir(), exist_ok=True)",
        ),
        "emptied": (
            "for path in pathlib.Path(tempfile.gettempdir()).iterdir(): shutil.rmtree(path, ignore_errors=True)",
            "",
        ),
        "replaced by a file": (
            "shutil.rmtree(tempfile.gettempdir())\npathlib.Path(tempfile.gettempdir()).touch()",
            "os.unlink(tempfile.gettempdir())\nos.makedirs(tempfile.gettempdir())",
        ),
        "moved": (
            "os.rename(tempfile.gettempdir(), tempfile.gettempdir() + '-moved')",
            "os.rename(tempfile.gettempdir() + '-moved', tempfile.gettempdir()) if os.path.exists(tempfile.gettempdir() + '-moved') else None",
        ),
        "set to a folder that does not exist": ("tempfile.tempdir = '/nonexistent'", ""),
        "TMPDIR=/proc": ("os.environ['TMPDIR'] = '/proc'\ntempfile.tempdir = None", ""),
        "not a path": ("tempfile.tempdir = b'bytes'", "tempfile.tempdir = None"),
        "changed": (
            "folder = os.path.join(os.path.dirname(PATH), 'other')\nos.mkdir(folder)\nos.environ['TMPDIR'] = tempfile.tempdir = folder",
            "",
        ),
    }
    marks = "@pytest.mark.fd_budget(0)\n@pytest.mark.disk_budget"
    for name, (code, undo) in codes.items():
        yield from _both(f"TMPDIR {name}", "temporary folder", code, undo, lasting=True, leaves=True, marks=marks)
    fill = """
    with contextlib.suppress(OSError), open(os.path.join(tempfile.gettempdir(), "large"), "wb", 0) as file:
        while True: file.write(bytes(4096))
    """
    yield from _both("TMPDIR full", "temporary folder", fill, small_tmp=True, lasting=True, leaves=True, marks=marks)
    yield from _both(
        "TMPDIR full until the next test",
        "temporary folder",
        fill,
        "with contextlib.suppress(OSError): os.unlink(os.path.join(tempfile.gettempdir(), 'large'))",
        small_tmp=True,
        leaves=True,
        marks=marks,
    )


def _environment() -> Iterator[Fault]:
    codes = {
        "chdir": "os.chdir('/')",
        "the current folder is removed": "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')",
        "umask 777": "os.umask(0o777)",
        "umask 0": "os.umask(0)",
        "environment is emptied": "os.environ.clear()",
        "PATH is emptied": "os.environ['PATH'] = ''",
        "PYTHONPATH is set": "os.environ['PYTHONPATH'] = '/nonexistent'",
        "PYTEST_ADDOPTS is set": "os.environ['PYTEST_ADDOPTS'] = '--no-such-option'",
        "CI is set": "os.environ['CI'] = '1'",
        "sys.path is emptied": "sys.path.clear()",
        "sys.path of Path": "sys.path[:] = map(pathlib.Path, sys.path)",
        "sys.path of None": "sys.path.append(None)",
        "sys.meta_path is emptied": "sys.meta_path.clear()",
        "sys.argv is emptied": "sys.argv.clear()",
        "sys.executable is empty": "sys.executable = ''",
        "modules of the plugin are removed": (
            "for name in list(sys.modules):\n    if name.startswith('pytest_leakcheck'): del sys.modules[name]"
        ),
        "modules of the library are removed": "for name in ('os', 'threading', 'json', 'tempfile', 'psutil'): del sys.modules[name]",
        "modules are None": "for name in ('json', 'tempfile', 'subprocess', 'tracemalloc'): sys.modules[name] = None",
        "modules are loaded again": "for module in (os, threading, gc, tempfile, psutil): importlib.reload(module)",
        "recursion limit": "sys.setrecursionlimit(220)",
        "switch interval": "sys.setswitchinterval(1e-6)",
        "warnings are errors": "warnings.simplefilter('error')",
        "excepthook raises": "sys.excepthook = sys.unraisablehook = threading.excepthook = refuse",
        "lines in linecache": "linecache.cache[PATH] = (1, None, ['wrong'] * 400, PATH)",
        "its own file is removed": "os.rename(PATH, PATH + '.away')",
        "the project's folder is renamed": "os.rename(os.path.dirname(PATH), os.path.dirname(PATH) + '-renamed')",
        "locale and time zone": "locale.setlocale(locale.LC_ALL, 'C')\nos.environ['TZ'] = 'Asia/Kathmandu'\ntime.tzset()",
        "random is seeded": "random.seed(1)\ndecimal.getcontext().prec = 1",
        "nice": "os.nice(5)",
        "a process group of its own": "os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None",
        "logging raises": "logging.raiseExceptions = True\nlogging.getLogger().addHandler(logging.StreamHandler(io.BytesIO()))\nlogging.getLogger().warning('x')",
    }
    undo = {
        "its own file is removed": "os.rename(PATH + '.away', PATH) if os.path.exists(PATH + '.away') else None",
        "the project's folder is renamed": "folder = os.path.dirname(PATH)\n"
        "os.rename(folder + '-renamed', folder) if os.path.exists(folder + '-renamed') else None",
        "modules are None": "for name in ('json', 'tempfile', 'subprocess', 'tracemalloc'):\n"
        "    if sys.modules.get(name, 1) is None: del sys.modules[name]",
        "recursion limit": "sys.setrecursionlimit(1000)",
    }
    for name, code in codes.items():
        yield from _both(name, "environment of the process", code, undo.get(name, ""))


def _signals() -> Iterator[Fault]:
    codes = {
        "all signals are blocked": ("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", ""),
        "SIGCHLD is ignored": ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", ""),
        "SIGCHLD reaps every child": (
            "def reap(*_):\n    with contextlib.suppress(ChildProcessError):\n        while os.waitpid(-1, os.WNOHANG)[0]: pass\n"
            "signal.signal(signal.SIGCHLD, reap)",
            "",
        ),
        "SIGINT is ignored": ("signal.signal(signal.SIGINT, signal.SIG_IGN)", ""),
        "SIGTERM is ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", ""),
        "SIGPIPE kills": ("signal.signal(signal.SIGPIPE, signal.SIG_DFL)", ""),
        "SIGALRM with a handler that returns": (
            "signal.signal(signal.SIGALRM, nothing)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
            "signal.setitimer(signal.ITIMER_REAL, 0)",
        ),
        "SIGPROF interrupts calls": (
            "signal.signal(signal.SIGPROF, nothing)\nsignal.siginterrupt(signal.SIGPROF, True)\nsignal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)",
            "signal.setitimer(signal.ITIMER_PROF, 0)",
        ),
        "stopped for a second": (
            "subprocess.Popen(['sh', '-c', f'sleep 1; kill -CONT {os.getpid()}'])\nos.kill(os.getpid(), signal.SIGSTOP)\nos.wait()",
            "",
        ),
    }  # fmt: skip
    for name, (code, undo) in codes.items():
        yield from _both(name, "signals", code, undo, leaves=name.startswith("SIGCHLD"))
    wake = (
        "leak()\nif now():\n    pair = socket.socketpair()\n    KEPT.append(pair)\n    pair[1].setblocking(False)\n"
        "    signal.set_wakeup_fd(pair[1].fileno())"
    )
    yield Fault("wake-up descriptor", "signals", wake, LEAKS, undo="signal.set_wakeup_fd(-1)")
    late = "signal.signal(signal.SIGALRM, refuse)\nif now(): signal.setitimer(signal.ITIMER_REAL, {})\nleak()"
    for seconds in (0.0001, 0.001, 0.005, 0.02):
        undo = "signal.setitimer(signal.ITIMER_REAL, 0)"
        name = f"SIGALRM raises {seconds:g} s after the fifth iteration began"
        # In place it may be raised in pytest, which plain pytest does not survive either.
        yield Fault(name, "signals", late.format(seconds), ANY, undo=undo, modes=("isolated",))
    yield Fault("SIGINT", "signals", "leak()\nif now(): os.kill(os.getpid(), signal.SIGINT)", LEAKS, leaves=True)
    yield Fault("SIGUSR1", "signals", "leak()\nif now(): os.kill(os.getpid(), signal.SIGUSR1)", LEAKS, leaves=True)


def _collector() -> Iterator[Fault]:
    codes = {
        "disable": ("gc.disable()", "gc.enable()"),
        "threshold 1": ("gc.set_threshold(1)", "gc.set_threshold(700, 10, 10)"),
        "threshold 0": ("gc.set_threshold(0)", "gc.set_threshold(700, 10, 10)"),
        "DEBUG_SAVEALL": ("gc.set_debug(gc.DEBUG_SAVEALL)", "gc.set_debug(0)\ngc.garbage.clear()"),
        "callbacks are removed": ("gc.callbacks.clear()", ""),
        "a callback raises": ("gc.callbacks.append(refuse)", "gc.callbacks.remove(refuse) if refuse in gc.callbacks else 0"),
        "freeze": ("gc.freeze()", "gc.unfreeze()"),
        "unfreeze": ("gc.unfreeze()", ""),
        "collect does nothing": ("COLLECT.append(gc.collect)\ngc.collect = nothing", "gc.collect = COLLECT[0] if COLLECT else gc.collect"),
    }  # fmt: skip
    # pytest keeps each exception of a callback.
    growing = ("a callback raises",)
    keep = {"leaky": ("KEPT.append([[] for _ in range(10)])", LEAKS), "clean": ("[[] for _ in range(10)]", CLEAN)}
    for name, (code, undo) in codes.items():
        for kind, (begin, expected) in keep.items():
            yield Fault(
                f"gc: {name} ({kind})",
                "garbage collector",
                f"{begin}\nif now():\n{textwrap.indent(code, '    ')}",
                ANY if name in growing and kind == "clean" else expected,
                module="COLLECT = []",
                marks="@pytest.mark.object_budget(0)",
                undo=undo,
                lasting=name in growing,
                options=("--leakcheck-max-time=8",),
            )


def _hooks() -> Iterator[Fault]:
    codes = {
        "setprofile": ("sys.setprofile(nothing)", "sys.setprofile(None)"),
        "settrace": ("sys.settrace(nothing)", "sys.settrace(None)"),
        "setprofile that raises": ("sys.setprofile(refuse)", "sys.setprofile(None)"),
        "settrace that raises": ("sys.settrace(refuse)", "sys.settrace(None)"),
        "threading.setprofile": ("threading.setprofile(nothing)", "threading.setprofile(None)"),
        "threading.settrace that raises": ("threading.settrace(refuse)", "threading.settrace(None)"),
        "tracemalloc is started": ("tracemalloc.start(5)", "tracemalloc.stop()"),
        "tracemalloc is stopped": ("tracemalloc.stop()", ""),
        "faulthandler": ("faulthandler.enable(sys.__stderr__)", ""),
        "faulthandler dumps later": ("faulthandler.dump_traceback_later(0.01)", "faulthandler.cancel_dump_traceback_later()"),
        "audit hook": ("sys.addaudithook(nothing)", ""),
        "audit hook that refuses os.listdir": (
            "def hook(event, _):\n    if event in ('os.listdir', 'os.scandir'): raise RuntimeError('refused')\nsys.addaudithook(hook)",
            "",
        ),
        "audit hook that refuses subprocesses": (
            "def hook(event, _):\n    if event in ('subprocess.Popen', 'os.fork'): raise RuntimeError('refused')\nsys.addaudithook(hook)",
            "",
        ),
    }  # fmt: skip
    for name, (code, undo) in codes.items():
        lasting = "raises" in name or "refuses" in name
        yield from _both(name, "hooks of the interpreter", code, undo, lasting=lasting)


_REPLACED: Final = (
    *(f"time.{name}" for name in ("perf_counter", "monotonic", "time", "sleep", "clock_gettime", "perf_counter_ns")),
    *(f"os.{name}" for name in ("open", "close", "read", "pread", "write", "stat", "fstat", "listdir", "scandir")),
    *(f"os.{name}" for name in ("readlink", "getpid", "kill", "waitid", "fork", "dup", "unlink", "mkdir", "environ")),
    *(f"builtins.{name}" for name in ("open", "print", "id", "sorted", "sum", "hasattr", "repr")),
    *(f"subprocess.{name}" for name in ("Popen", "run")),
    *(f"psutil.{name}" for name in ("Process", "process_iter", "pid_exists")),
    *(f"threading.{name}" for name in ("Thread", "Lock", "enumerate", "Event", "current_thread")),
    *(f"gc.{name}" for name in ("get_objects", "get_referrers", "get_count", "isenabled")),
    *(f"sys.{name}" for name in ("getallocatedblocks", "_getframe", "getsizeof", "_current_frames")),
    *(f"tempfile.{name}" for name in ("mkdtemp", "gettempdir", "TemporaryDirectory")),
    *(f"json.{name}" for name in ("dumps", "loads")),
    *(f"pathlib.Path.{name}" for name in ("read_text", "exists", "stat", "open")),
    *("ctypes.CDLL", "asyncio.all_tasks", "inspect.getsource", "traceback.extract_tb", "linecache.getline"),
)


def _replaced() -> Iterator[Fault]:
    for name in _REPLACED:
        owner, _, function = name.rpartition(".")
        module = f"import inspect, traceback\nSAVED = {name}"
        undo = f"{owner}.{function} = SAVED"
        for manner, value in (("raises", "refuse"), ("returns None", "nothing")):
            body = f"leak()\nif now(): {owner}.{function} = {value}"
            title = f"{name} {manner}"
            yield Fault(title, "replaced functions", body, LEAKS, module=module, undo=undo)
        if owner in ("time", "os", "gc", "psutil"):
            body = f"clean()\nif now(): {owner}.{function} = refuse"
            yield Fault(
                f"{name} raises for good (clean)", "replaced functions", body, CLEAN, module=module, lasting=True
            )
    module = "SAVED = time.monotonic, time.perf_counter, time.time"
    names = "time.monotonic = time.perf_counter = time.time"
    undo = "time.monotonic, time.perf_counter, time.time = SAVED"
    for title, value in (
        ("stand still", "lambda: 1.0"),
        ("run backwards", "itertools.count(1e9, -1).__next__"),
        ("jump by years", "itertools.count(0, 1e9).__next__"),
        ("return NaN", "lambda: float('nan')"),
    ):
        body = f"if now(): {names} = {value}"
        clock = "replaced functions"
        yield Fault(f"clocks {title} (leaky)", clock, f"leak()\n{body}", LEAKS, module=module, undo=undo)
        yield Fault(f"clocks {title} (clean)", clock, f"clean()\n{body}", CLEAN, module=module, undo=undo)


def _threads() -> Iterator[Fault]:
    start = "one = threading.Thread(target={target}, daemon={daemon})\none.start()"
    codes = {
        "a daemon without end": start.format(target="threading.Event().wait", daemon=True),
        "a thread that ends later": start.format(target="lambda: time.sleep(2)", daemon=False),
        "a thread that raises": start.format(target="refuse", daemon=True) + "\none.join()",
        "a thread that exits": start.format(target="sys.exit", daemon=True) + "\none.join()",
        "200 threads at once": (
            "ready = threading.Barrier(201)\nmany = [threading.Thread(target=ready.wait) for _ in range(200)]\n"
            "for one in many: one.start()\nready.wait()\nfor one in many: one.join()"
        ),
        "a thread collects garbage": start.format(
            target="lambda: [(gc.collect(), time.sleep(.002)) for _ in range(300)]", daemon=True
        ),
        "a thread forks": start.format(
            target="lambda: [subprocess.run(['true']) for _ in range(40)]",
            daemon=True,
        ),
        "a lock is held": "lock = threading.Lock()\nlock.acquire()\nKEPT.append(lock)",
        "the logging lock is held by a thread": start.format(
            target="lambda: (logging._acquireLock() if hasattr(logging, '_acquireLock') else logging._lock.acquire())",
            daemon=True,
        )
        + "\none.join()",
        "the import lock is held": "import _imp\n"
        + start.format(target="lambda: (_imp.acquire_lock(), time.sleep(2), _imp.release_lock())", daemon=True),
        "stdout's lock is held": start.format(target="lambda: (sys.stdout.write('x'), time.sleep(1))", daemon=True),
    }
    for name, code in codes.items():
        yield from _both(
            name,
            "threads",
            code,
            marks="@pytest.mark.fd_budget(0)\n@pytest.mark.filterwarnings('ignore')",
            lasting=name == "a thread forks",
        )
    loop = "loop = asyncio.new_event_loop()\n" + start.format(target="loop.run_forever", daemon=True)
    body = f"leak()\nif now():\n{textwrap.indent(loop, '    ')}"
    # Its three descriptors stay: there is no clean counterpart.
    yield Fault("an event loop in a thread", "threads", body, LEAKS)
    hangs = {
        "deadlock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "sleep without end": "time.sleep(1e6)",
        "deadlock with signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nthreading.Event().wait()",
        "deadlock, SIGTERM ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nthreading.Event().wait()",
    }
    for name, code in hangs.items():
        for mode, seconds in (("in place", 8), ("isolated", _HANG_SECONDS)):
            yield Fault(
                f"{name} {mode}",
                "threads",
                "leak()\nif now():\n" + textwrap.indent(code, "    "),
                LEAKS,
                leaves=True,
                options=("--leakcheck-max-time=1",),
                seconds=seconds,
                modes=(mode,),
            )


_RAISED: Final = {
    "SystemExit": "raise SystemExit(0)",
    "SystemExit(3)": "raise SystemExit(3)",
    "MemoryError": "raise MemoryError",
    "RecursionError": "def down(): down()\ndown()",
    "GeneratorExit": "raise GeneratorExit",
    "BaseException": "raise BaseException('base')",
    "CancelledError": "raise asyncio.CancelledError",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "pytest.skip": "pytest.skip('now')",
    "pytest.xfail": "pytest.xfail('now')",
    "pytest.fail": "pytest.fail('now')",
    "pytest.exit": "pytest.exit('now')",
    "StopIteration": "raise StopIteration",
    "EMFILE": "raise OSError(errno.EMFILE, 'too many')",
    "BrokenPipeError": "raise BrokenPipeError",
    "exception group": "raise __import__('builtins').ExceptionGroup('many', [ValueError(1), OSError(2)])",
    "str() raises": "raise type('Odd', (Exception,), {'__str__': refuse, '__repr__': refuse})()",
    "circular cause": "one = ValueError(1)\none.__cause__ = one\nraise one",
    "10 MB of text": "raise ValueError('x' * 10_000_000)",
    "surrogates": "raise ValueError('\\udcff\\ud800')",
    "pickling refuses": "raise type('Odd', (Exception,), {'__reduce__': refuse})(threading.Lock())",
    "TimeoutError": "raise TimeoutError",
    "assert": "assert KEPT == []",
    "LeakError": "raise __import__('pytest_leakcheck').LeakError('not of the plugin')",
}


def _exceptions() -> Iterator[Fault]:
    in_all = ("SystemExit", "MemoryError", "KeyboardInterrupt", "pytest.skip", "pytest.exit", "BaseException", "assert")
    for name, code in _RAISED.items():
        for place in _PLACES if name in in_all else ("body",):
            yield Fault(
                f"{name} in {place}",
                "exceptions",
                expected=LEAKS,
                **_placed(place, code),  # type: ignore[arg-type] # all of them are strings
            )


def _warnings() -> Iterator[Fault]:
    bodies = {
        "unclosed file": "open(PATH)\nleak()",
        "thread raises": "if now():\n    one = threading.Thread(target=refuse)\n    one.start()\n    one.join()\nleak()",
        "__del__ raises": "if now(): type('Odd', (), {'__del__': refuse})()\nleak()",
        "__del__ in a cycle raises": "if now():\n    one = type('Odd', (), {'__del__': refuse})()\n    one.self = one\nleak()",
        "coroutine is not awaited": "async def nothing_yet(): pass\nnothing_yet()\nleak()",
        "deprecated": "if now(): warnings.warn('old', DeprecationWarning)\nleak()",
    }
    for name, body in bodies.items():
        yield Fault(f"-W error: {name}", "warnings as errors", body, LEAKS, options=("-W", "error"))


def _amounts() -> Iterator[Fault]:
    files = "[os.close(tempfile.mkstemp()[0]) for _ in range(1000)]"
    bodies = {
        "10^6 objects per iteration": ("[[] for _ in range(1_000_000)]\nleak()", "fd_budget(0)"),
        "10^5 objects kept per iteration": ("KEPT.append([[] for _ in range(100_000)])", "object_budget(0)"),
        "500 threads per iteration": (
            "many = [threading.Thread(target=int) for _ in range(500)]\nfor one in many: one.start()\nfor one in many: one.join()\nleak()",
            "fd_budget(0)",
        ),
        "300 threads kept": ("if now():\n    for _ in range(300): threading.Thread(target=threading.Event().wait, daemon=True).start()\nleak()", "fd_budget(0)"),
        "2,000 descriptors kept per iteration": ("for _ in range(800): leak()", "fd_budget(0)"),
        "100 children": ("if now(): KEPT.extend(subprocess.Popen(['sleep', '30']) for _ in range(100))\nleak()", "fd_budget(0)"),
        "1,000 temporary files": (f"if now(): {files}\nleak()", "fd_budget(0)"),
        "100 MiB per iteration": ("bytearray(100 << 20)\nleak()", "fd_budget(0)"),
        "a list nested 10^5 deep": ("if now():\n    one = []\n    for _ in range(100_000): one = [one]\n    KEPT.append(one)\nleak()", "object_budget(0)"),
        "nested 10 deep per iteration": ("one = []\nfor _ in range(2_000): one = [one]\nKEPT.append(one)", "object_budget(0)"),
        "10^5 types": ("if now(): KEPT.append([type('T', (), {}) for _ in range(20_000)])\nleak()", "fd_budget(0)"),
        "20 MB of output": ("if now(): print('x' * 20_000_000)\nleak()", "fd_budget(0)"),
        "10^5 modules": ("if now(): sys.modules.update((f'odd{n}', types.ModuleType(f'odd{n}')) for n in range(100_000))\nleak()", "fd_budget(0)"),
        "10,000 properties": ("for n in range(500): record_property(f'p{n}', 'x')\nleak()", "fd_budget(0)"),
        "objects that refuse inspection": (
            "KEPT.append(type('Odd', (), {'__repr__': refuse, '__eq__': refuse, '__hash__': refuse, '__getattribute__': refuse, "
            "'__len__': refuse, '__class__': property(refuse)})())",
            "object_budget(0)",
        ),
    }  # fmt: skip
    for name, (body, mark) in bodies.items():
        yield Fault(
            name,
            "amounts",
            body,
            LEAKS,
            arguments="record_property" if "properties" in name else "",
            marks=f"@pytest.mark.{mark}",
            leaves=True,
            seconds=120,
        )


def _output() -> Iterator[Fault]:
    codes = {
        "sys.stdout is None": "sys.stdout = sys.stderr = None",
        "sys.__stdout__ is None": "sys.__stdout__ = sys.__stderr__ = None",
        "sys.stdout is a closed text": "sys.stdout = io.StringIO()\nsys.stdout.close()",
        "sys.stdout is closed": "sys.stdout.close()",
        "sys.stderr is closed": "sys.stderr.close()",
        "writing raises": "sys.stdout = sys.stderr = types.SimpleNamespace(write=refuse, flush=refuse)",
        "descriptor 1 is closed": "CLOSE(1)",
        "descriptor 2 is closed": "CLOSE(2)",
        "sys.stdin is None": "sys.stdin = None",
    }
    for name, code in codes.items():
        for options in ((), ("-s",)):
            title = f"{name}{' with -s' if options else ''}"
            yield Fault(title, "output", f"leak()\nif now(): {code.replace(chr(10), '; ')}", LEAKS, options=options)


_ODD: Final = {
    "escape sequence": "a\x1b[31mb\x1b]0;title\x07",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "markup": "<script>alert(1)</script>&amp;",
    "colons": "a::b::c",
    "brackets": "a[b]c]",
    "5,000 letters": "x" * 5000,
    "snowman": "\u2603\U0001f600",
    "right to left": "a\u202eb",
    "nothing": "",
    "blank": "   ",
    "option": "--leakcheck-isolate",
    "path": "../../etc/passwd",
    "format": "{0} %s $HOME `id`",
    "quotes": "\"'\\",
    "NUL": "a\\0b",
}


def _names() -> Iterator[Fault]:
    for name, odd in _ODD.items():
        mark = f"@pytest.mark.parametrize('x', [1], ids=[{odd!r}])"
        yield Fault(
            f"id: {name}",
            "names",
            "leak()",
            LEAKS,
            arguments="x",
            marks=f"{mark}\n@pytest.mark.fd_budget(0)",
            lasting=True,
        )
    odd = "'evil\\x1b[31m\\x1b]0;pwned\\x07\\n'"
    holders = {
        "file": ("open", f"KEPT.append(OPEN({odd}, os.O_CREAT))", "fd_budget(0)"),
        "temporary file": ("disk", f"tempfile.mkstemp({odd})", "disk_budget(0)"),
        "type": ("type", f"KEPT.append(type({odd}, (), {{}})())", "object_budget(0)"),
        "thread": (
            "thread",
            f"threading.Thread(target=threading.Event().wait, name={odd}, daemon=True).start()",
            "thread_budget(0)",
        ),
        "child": (
            "child",
            f"KEPT.append(subprocess.Popen(['sleep', '30', {odd}][:2] + ['0' + {odd}][:0]))",
            "process_budget(0)",
        ),
        "child's command line": (
            "argv",
            f"KEPT.append(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)', {odd}]))",
            "process_budget(0)",
        ),
    }
    for name, (_, body, mark) in holders.items():
        yield Fault(f"name of a {name}", "names", body, LEAKS, marks=f"@pytest.mark.{mark}", leaves=True)
    body = f"leakcheck.gauge({odd}, lambda: len(KEPT))\nKEPT.append(1)"
    yield Fault("name of a gauge", "names", body, LEAKS, arguments="leakcheck", marks="@pytest.mark.leakcheck")
    for name, file in (("newline", "test_a\nb.py"), ("escape", "test_a\x1b[31m.py"), ("blank", "test_a b.py")):
        yield Fault(f"file with {name}", "names", "leak()", LEAKS, file=file, lasting=True)


def _gauges() -> Iterator[Fault]:
    values = {
        "raises": "refuse()",
        "None": "None",
        "2**80": "1 << 80",
        "float": "1.5",
        "NaN": "float('nan')",
        "infinity": "float('inf')",
        "text": "'many'",
        "negative": "-5",
        "a bool": "True",
        "raises SystemExit": "sys.exit(0)",
        "raises BaseException": "(_ for _ in ()).throw(BaseException('gauge'))",
        "slow": "time.sleep(0.05) or 1",
        "another type later": "1 if len(KEPT) < 8 else 'many'",
        "leaks itself": "leak() or 1",
    }
    for name, value in values.items():
        body = f"leakcheck.gauge('odd', lambda: {value})\nleak()"
        yield Fault(f"gauge: {name}", "gauges", body, LEAKS, arguments="leakcheck")
        body = f"leakcheck.gauge('odd', lambda: {value})\nfor _ in leakcheck.steps(fd=0):\n    leak()"
        yield Fault(f"gauge in a loop: {name}", "gauges", body, LEAKS, arguments="leakcheck", marks="", modes=_IN_PLACE)


def _steps() -> Iterator[Fault]:
    loop = "for step in leakcheck.steps(fd=0):\n    leak()\n    if step == {}: {}"
    bodies = {
        "break at 0": loop.format(0, "break"),
        "break at 1": loop.format(1, "break"),
        "break at 9": loop.format(9, "break"),
        "return at 1": loop.format(1, "return"),
        "raise at 1": loop.format(1, "raise ValueError"),
        "skip at 1": loop.format(1, "pytest.skip()"),
        "return at 8": loop.format(8, "return"),
        "never begun": "leakcheck.steps(fd=0)\nleak()",
        "closed": "steps = leakcheck.steps(fd=0)\nnext(steps)\nleak()\nsteps.close()",
        "kept and not continued": "steps = leakcheck.steps(fd=0)\nnext(steps)\nleak()\nKEPT.append(steps)",
        "thrown into": (
            "steps = leakcheck.steps(fd=0)\nnext(steps)\nleak()\nwith contextlib.suppress(ValueError): steps.throw(ValueError)"
        ),
        "in a thread": (
            "def work():\n    for _ in leakcheck.steps(fd=0): leak()\none = threading.Thread(target=work)\none.start()\none.join()"
        ),
        "nested": (
            "for _ in leakcheck.steps(fd=0):\n    leak()\n    with contextlib.suppress(Exception):\n        for _ in leakcheck.steps(fd=0): leak()"
        ),
        "left and begun again": (
            "for _ in leakcheck.steps(fd=0): break\nfor _ in leakcheck.steps(fd=0):\n    leak()"
        ),
        "block left by an exception": "with contextlib.suppress(ValueError), leakcheck.budget(fd=0):\n    leak()\n    raise ValueError",
        "block left by return": "with leakcheck.budget(fd=0):\n    leak()\n    return",
        "fork in a loop": (
            "for step in leakcheck.steps(fd=0):\n    leak()\n    if step == 3 and not os.fork(): os._exit(0)"
        ),
        "the child continues the loop": (
            "for step in leakcheck.steps(fd=0):\n    leak()\n    if step == 3 and not os.fork(): continue"
        ),
    }  # fmt: skip
    for name, body in bodies.items():
        expected = ANY if name in ("in a thread", "block left by an exception") else LEAKS
        leaves = "child" in name
        yield Fault(
            f"loop: {name}", "loops", body, expected, arguments="leakcheck", marks="", modes=_IN_PLACE, leaves=leaves
        )


def _allocators() -> Iterator[Fault]:
    for library in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"):
        path = Path("/usr/lib/x86_64-linux-gnu") / library
        if not path.exists():
            continue
        for mark in ("heap_budget", "leakcheck"):
            yield Fault(
                f"{library} under {mark}",
                "allocators",
                "ctypes.CDLL(None).malloc(4096)",
                LEAKS if mark == "heap_budget" else ANY,
                marks=f"@pytest.mark.{mark}",
                never_ok=("heap",),
                environment={"LD_PRELOAD": str(path)},
                options=("--leakcheck-max-time=8",),
                seconds=120,
            )


def _plugins() -> Iterator[Fault]:
    late = "leak()\nDONE.append(1)\nwhile len(DONE) >= {}: pass"
    for at in (1, 3):
        for method in ("signal", "thread"):
            mark = f"@pytest.mark.timeout(2, method={method!r})\n@pytest.mark.fd_budget(0)"
            yield Fault(
                f"pytest-timeout, {method}, hangs at {at}",
                "other plugins",
                late.format(at if method == "signal" else f"(1 if AT == 1 else {at})"),
                LEAKS,
                marks=mark,
                plugins=("timeout",),
                leaves=True,
                seconds=_HANG_SECONDS,
                options=("--leakcheck-max-time=1",),
            )
    for name, code in (
        ("_exit", "os._exit(3)"),
        ("SIGKILL", "os.kill(os.getpid(), 9)"),
        ("SIGTERM", "os.kill(os.getpid(), 15)"),
    ):
        yield Fault(
            f"xdist: {name} in a worker",
            "other plugins",
            f"leak()\nif now(): {code}",
            LEAKS,
            plugins=("xdist",),
            options=("-n1",),
            lasting=True,
            leaves=True,
        )
    for name in ("gc.collect", "os.listdir", "time.monotonic"):
        owner, _, function = name.rpartition(".")
        yield Fault(
            f"xdist: {name} raises",
            "other plugins",
            f"leak()\nif now(): {owner}.{function} = refuse",
            LEAKS,
            plugins=("xdist",),
            options=("-n1",),
            lasting=True,
        )
