"""The faults within a test: each a few lines of Python that disturb the process that measures.

Many are written once and multiplied: by place (set-up, body, tear-down), by what the test does besides (leak or not), or
by the function that is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from around import ANY, CLEAN, LEAKS, Fault

# Longer than the 62 s after which an iteration counts as hung at --leakcheck-max-time=1.
_HANG_SECONDS: Final = 130
_FD: Final = "@pytest.mark.fd_budget(0)"


def catalogue() -> list[Fault]:
    """Return all faults; their names are unique."""
    faults = [fault for name, part in globals().items() if name.startswith("_list_") for fault in part()]
    if twice := {one.name for one in faults if sum(other.name == one.name for other in faults) > 1}:
        raise ValueError(f"used more than once: {', '.join(sorted(twice))}")
    return faults


def _at_fifth(code: str) -> str:
    return "if now():\n" + indent(code, "    ")


def _placed(place: str, code: str) -> dict[str, Any]:
    """Return the parts of a fault whose code runs in set-up, body or tear-down, in the fifth iteration."""
    if place == "body":
        return {"body": f"leak()\n{_at_fifth(code)}"}
    lines = [_at_fifth(code), "yield"] if place == "set-up" else ["yield", _at_fifth(code)]
    fixture = "@pytest.fixture\ndef faulty():\n" + indent("\n".join(lines), "    ")
    return {"module": fixture, "arguments": "faulty", "body": "leak()"}


def _both(name: str, category: str, code: str, undo: str = "", **settings: Any) -> Iterator[Fault]:
    """Yield a fault that changes the state of the process in the fifth iteration of a leaky and of a clean test."""
    for kind, expected, begin in (("leaky", LEAKS, "leak()"), ("clean", CLEAN, "clean()")):
        yield Fault(f"{name} ({kind})", category, f"{begin}\n{_at_fifth(code)}", expected, undo=undo, **settings)


_ENDS: Final = {
    "_exit(0)": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "os.abort()",
    "exec": 'os.execv(sys.executable, [sys.executable, "-c", "pass"])',
    "stack overflow": "sys.setrecursionlimit(1 << 30)\ndef down(): down.__call__()\nlist(map(lambda _: down(), [0]))",
    "_exit(0) in a thread": "thread = threading.Thread(target=os._exit, args=(0,))\nthread.start()\nthread.join()",
}
_RAISED: Final = {
    "SystemExit": "raise SystemExit(0)",
    "MemoryError": "raise MemoryError",
    "RecursionError": "def down(): down()\ndown()",
    "BaseException": "raise BaseException('base')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "pytest.skip": "pytest.skip('now')",
    "pytest.exit": "pytest.exit('now')",
    "EMFILE": "raise OSError(errno.EMFILE, 'too many')",
    "exception group": "raise __import__('builtins').ExceptionGroup('many', [ValueError(1), OSError(2)])",
    "str() raises": "raise type('Odd', (Exception,), {'__str__': refuse, '__repr__': refuse})()",
    "circular cause": "one = ValueError(1)\none.__cause__ = one\nraise one",
    "10 MB of text": "raise ValueError('x' * 10_000_000)",
    "surrogates": "raise ValueError('\\udcff\\ud800')",
    "pickling refuses": "raise type('Odd', (Exception,), {'__reduce__': refuse})(threading.Lock())",
    "assert": "assert KEPT == []",
    "LeakError": "raise __import__('pytest_leakcheck').LeakError('not of the plugin')",
}
# These are tried in set-up and tear-down as well.
_EVERYWHERE: Final = ("SIGKILL", "exec", "MemoryError", "KeyboardInterrupt", "pytest.skip", "pytest.exit", "assert")


def _list_ends_and_exceptions() -> Iterator[Fault]:
    for category, codes in (("the process ends", _ENDS), ("exceptions", _RAISED)):
        for name, code in codes.items():
            for place in ("set-up", "body", "tear-down") if name in _EVERYWHERE else ("body",):
                settings = _placed(place, code)
                yield Fault(f"{name} in {place}", category, expected=LEAKS, leaves=codes is _ENDS, **settings)


# A test that forks in each process doubles them; this ends the third generation and all above 60.
_GUARD: Final = """
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
# What leaves processes, and so may have any verdict; then what waits for its children, and leaks besides.
_STRAYS: Final = {
    "both processes return": "guarded_fork()",
    "the child exits": "if not guarded_fork():\n    sys.exit(0)",
    "the child raises": "if not guarded_fork():\n    raise ValueError('child')",
    "children stay": "if not os.fork():\n    time.sleep(60)\n    os._exit(0)",
    "a pool is left": "KEPT.append(multiprocessing.get_context('fork').Pool(1))",
}
_CHILDREN: Final = {
    "a child is not waited for": "if not os.fork():\n    os._exit(0)",
    "a daemon": "if not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(20)\n    os._exit(0)\nos.wait()",
    "Popen is left": "KEPT.append(subprocess.Popen(['sleep', '60']))",
    "fork in a thread": (
        "def work():\n    child = os.fork()\n    if not child:\n        os._exit(0)\n    os.waitpid(child, 0)\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()"
    ),
    "spawn": (
        "if now():\n    one = multiprocessing.get_context('spawn').Process(target=time.sleep, args=(0,))\n"
        "    one.start()\n    one.join()"
    ),
    "a pool is closed": "with concurrent.futures.ProcessPoolExecutor(1) as pool:\n    pool.submit(int, 1).result()",
    "the child closes all descriptors": (
        "child = os.fork()\nif not child:\n    os.closerange(0, 65536)\n    os._exit(0)\nos.waitpid(child, 0)"
    ),
}


def _list_forks() -> Iterator[Fault]:
    marks = f"{_FD}\n@pytest.mark.process_budget(0)"
    for name, body in _STRAYS.items():
        yield Fault(f"fork: {name}", "forks", body, ANY, module=_GUARD, marks=marks, leaves=True)
    for name, body in _CHILDREN.items():
        yield Fault(f"fork: {name}", "forks", f"{body}\nleak()", LEAKS, marks=marks, leaves=True)


_OF_ALL: Final = (
    "for name in os.listdir('/proc/self/fd'):\n    if int(name) > 2:\n        with contextlib.suppress(OSError): "
)
_EXHAUST: Final = """\
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
try:
    while True: OPENED.append(OPEN("/dev/null", RDONLY))
except OSError:
    pass
"""
_SOFT: Final = _EXHAUST.format(hard="resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
_RELEASE: Final = "for number in OPENED: CLOSE(number)\nOPENED.clear()"
_DESCRIPTORS: Final = {
    "closerange(3, 65536)": "os.closerange(3, 65536)",
    "closerange(0, 3)": "os.closerange(0, 3)",
    "dup2 over the plugin's": "for name in os.listdir('/proc/self/fd'):\n    if int(name) > 500: os.dup2(2, int(name))",
    "opened again elsewhere": f"{_OF_ALL}CLOSE(int(name))\nfor _ in range(20): KEPT.append(OPEN('/dev/zero', RDONLY))",
    "standard streams do not block": "for number in range(3): os.set_blocking(number, False)",
    "descriptors are inherited": f"{_OF_ALL}os.set_inheritable(int(name), True)",
    "offsets are moved": f"{_OF_ALL}os.lseek(int(name), 3, 0)",
    "EMFILE, then closed": _SOFT + _RELEASE,
}


def _list_descriptors() -> Iterator[Fault]:
    for name, code in _DESCRIPTORS.items():
        yield from _both(name, "descriptors", code, lasting=True)
    # These keep descriptors: there is no clean counterpart.
    away = f"leak()\n{_at_fifth('KEPT.append(os.dup(1))' + chr(10) + 'os.dup2(OPEN(os.devnull, os.O_WRONLY), 1)')}"
    yield Fault("dup2 of /dev/null over stdout", "descriptors", away, LEAKS, undo="os.dup2(KEPT[-1], 1)", lasting=True)
    yield Fault("EMFILE until the next test", "descriptors", _at_fifth(_SOFT), ANY, undo=_RELEASE)
    yield Fault("EMFILE stays", "descriptors", _at_fifth(_EXHAUST.format(hard="256")), ANY, lasting=True)


# What no report can be written under (the last two) is no question of measuring, and does not stay.
_LIMITS: Final = {"NOFILE": 64, "STACK": 64 << 10, "NPROC": 0, "CPU": 600, "FSIZE": 0, "AS": 400 << 20}


def _list_limits() -> Iterator[Fault]:
    for name, value in _LIMITS.items():
        limit = f"resource.RLIMIT_{name}"
        code = f"KEPT.append(resource.getrlimit({limit}))\nresource.setrlimit({limit}, ({value}, KEPT[-1][1]))"
        module = f"BEFORE = resource.getrlimit({limit})\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
        undo = f"resource.setrlimit({limit}, KEPT[-1] if KEPT and isinstance(KEPT[-1], tuple) else BEFORE)"
        yield from _both(f"RLIMIT_{name}={value}", "limits", code, undo, module=module)
        if name not in ("FSIZE", "AS"):
            # In place, the tests after it would themselves run out of descriptors.
            modes = ("isolated",) if name == "NOFILE" else ("in place", "isolated")
            yield from _both(f"RLIMIT_{name}={value}, stays", "limits", code, module=module, lasting=True, modes=modes)


_FOLDER: Final = "tempfile.gettempdir()"
_FULL: Final = """\
with contextlib.suppress(OSError), open(os.path.join(tempfile.gettempdir(), "large"), "wb", 0) as file:
    while True: file.write(bytes(4096))
"""
_TEMPORARY: Final = {
    "deleted": (f"shutil.rmtree({_FOLDER})", ""),
    "deleted until the next test": (f"shutil.rmtree({_FOLDER})", f"os.makedirs({_FOLDER}, exist_ok=True)"),
    "emptied": (f"for path in pathlib.Path({_FOLDER}).iterdir(): shutil.rmtree(path, ignore_errors=True)", ""),
    "replaced by a file": (
        f"shutil.rmtree({_FOLDER})\npathlib.Path({_FOLDER}).touch()",
        f"os.unlink({_FOLDER})\nos.makedirs({_FOLDER})",
    ),
    "set to a folder that does not exist": ("tempfile.tempdir = '/nonexistent'", ""),
    "not a path": ("tempfile.tempdir = b'bytes'", "tempfile.tempdir = None"),
    "full": (_FULL, ""),
}


def _list_temporary_folder() -> Iterator[Fault]:
    settings = {"lasting": True, "leaves": True, "marks": f"{_FD}\n@pytest.mark.disk_budget"}
    for name, (code, undo) in _TEMPORARY.items():
        yield from _both(f"TMPDIR {name}", "temporary folder", code, undo, small_tmp=name == "full", **settings)


_ENVIRONMENT: Final = {
    "the current folder is removed": "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')",
    "umask 777": "os.umask(0o777)",
    "environment is emptied": "os.environ.clear()",
    "PYTEST_ADDOPTS is set": "os.environ['PYTEST_ADDOPTS'] = '--no-such-option'",
    "CI is set": "os.environ['CI'] = '1'",
    "sys.path is emptied": "sys.path.clear()",
    "sys.path of None": "sys.path.append(None)",
    "sys.meta_path is emptied": "sys.meta_path.clear()",
    "sys.executable is empty": "sys.executable = ''",
    "modules of the plugin are removed": (
        "for name in list(sys.modules):\n    if name.startswith('pytest_leakcheck'): del sys.modules[name]"
    ),
    "modules are loaded again": "for module in (os, threading, gc, tempfile, psutil): importlib.reload(module)",
    "modules are None": "for name in ('json', 'tempfile', 'subprocess', 'tracemalloc'): sys.modules[name] = None",
    "recursion limit": "sys.setrecursionlimit(220)",
    "switch interval": "sys.setswitchinterval(1e-6)",
    "warnings are errors": "warnings.simplefilter('error')",
    "excepthook raises": "sys.excepthook = sys.unraisablehook = threading.excepthook = refuse",
    "its own file is removed": "os.rename(PATH, PATH + '.away')",
    "locale and time zone": "locale.setlocale(locale.LC_ALL, 'C')\nos.environ['TZ'] = 'Asia/Kathmandu'\ntime.tzset()",
    "a process group of its own": "os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None",
}
_UNDO: Final = {
    "its own file is removed": "os.rename(PATH + '.away', PATH) if os.path.exists(PATH + '.away') else None",
    "modules are None": (
        "for name in ('json', 'tempfile', 'subprocess', 'tracemalloc'):\n"
        "    if sys.modules.get(name, 1) is None: del sys.modules[name]"
    ),
    "recursion limit": "sys.setrecursionlimit(1000)",
}


def _list_environment() -> Iterator[Fault]:
    for name, code in _ENVIRONMENT.items():
        yield from _both(name, "environment of the process", code, _UNDO.get(name, ""))


_SIGNALS: Final = {
    "all signals are blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "SIGCHLD is ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGCHLD reaps every child": (
        "def reap(*_):\n    with contextlib.suppress(ChildProcessError):\n        while os.waitpid(-1, os.WNOHANG)[0]: pass\n"
        "signal.signal(signal.SIGCHLD, reap)"
    ),
    "SIGTERM is ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "SIGALRM with a handler": "signal.signal(signal.SIGALRM, nothing)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
    "stopped for a second": (
        "subprocess.Popen(['sh', '-c', f'sleep 1; kill -CONT {os.getpid()}'])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()"
    ),
}


def _list_signals() -> Iterator[Fault]:
    stop = "signal.setitimer(signal.ITIMER_REAL, 0)"
    for name, code in _SIGNALS.items():
        undo = stop if "SIGALRM" in name else ""
        yield from _both(name, "signals", code, undo, leaves=name.startswith("SIGCHLD"))
    for seconds in (0.0001, 0.001, 0.02):
        body = (
            f"signal.signal(signal.SIGALRM, refuse)\nif now(): signal.setitimer(signal.ITIMER_REAL, {seconds})\nleak()"
        )
        # In place it may be raised in pytest, which plain pytest does not survive either.
        yield Fault(f"SIGALRM raises after {seconds:g} s", "signals", body, ANY, undo=stop, modes=("isolated",))
    yield Fault("SIGINT", "signals", "leak()\nif now(): os.kill(os.getpid(), signal.SIGINT)", LEAKS, leaves=True)


_COLLECTOR: Final = {
    "disable": ("gc.disable()", "gc.enable()"),
    "threshold 1": ("gc.set_threshold(1)", "gc.set_threshold(700, 10, 10)"),
    "DEBUG_SAVEALL": ("gc.set_debug(gc.DEBUG_SAVEALL)", "gc.set_debug(0)\ngc.garbage.clear()"),
    "callbacks are removed": ("gc.callbacks.clear()", ""),
    "a callback raises": (
        "gc.callbacks.append(refuse)",
        "gc.callbacks.remove(refuse) if refuse in gc.callbacks else 0",
    ),
    "unfreeze": ("gc.unfreeze()", ""),
    "collect does nothing": ("gc.collect = nothing", "gc.collect = COLLECT"),
}


def _list_collector() -> Iterator[Fault]:
    options = ("--leakcheck-max-time=8",)
    for name, (code, undo) in _COLLECTOR.items():
        # pytest keeps each exception of a callback.
        growing = name == "a callback raises"
        for kind, begin, expected in (("leaky", "KEPT.append({})", LEAKS), ("clean", "{}", ANY if growing else CLEAN)):
            yield Fault(
                f"gc: {name} ({kind})",
                "garbage collector",
                f"{begin.format('[[] for _ in range(10)]')}\n{_at_fifth(code)}",
                expected,
                module="COLLECT = gc.collect",
                marks="@pytest.mark.object_budget(0)",
                undo=undo,
                lasting=growing,
                options=options,
            )


_REFUSE: Final = "def hook(event, _):\n    if event in {}: raise RuntimeError('refused')\nsys.addaudithook(hook)"
_HOOKS: Final = {
    "setprofile": ("sys.setprofile(nothing)", "sys.setprofile(None)"),
    "settrace that raises": ("sys.settrace(refuse)", "sys.settrace(None)"),
    "threading.setprofile": ("threading.setprofile(nothing)", "threading.setprofile(None)"),
    "tracemalloc is started": ("tracemalloc.start(5)", "tracemalloc.stop()"),
    "tracemalloc is stopped": ("tracemalloc.stop()", ""),
    "faulthandler": ("faulthandler.enable(sys.__stderr__)", ""),
    "audit hook that refuses os.listdir": (_REFUSE.format("('os.listdir', 'os.scandir')"), ""),
    "audit hook that refuses subprocesses": (_REFUSE.format("('subprocess.Popen', 'os.fork')"), ""),
}


def _list_hooks() -> Iterator[Fault]:
    for name, (code, undo) in _HOOKS.items():
        yield from _both(name, "hooks of the interpreter", code, undo, lasting="raises" in name or "refuses" in name)


# Functions of the library that measuring and reporting use.
_REPLACED: Final = (
    *(f"time.{name}" for name in ("perf_counter", "monotonic", "sleep")),
    *(f"os.{name}" for name in ("open", "close", "read", "write", "stat", "listdir", "scandir")),
    *(f"os.{name}" for name in ("readlink", "getpid", "waitid", "fork", "environ")),
    *(f"builtins.{name}" for name in ("open", "print", "sorted", "repr")),
    *("subprocess.Popen", "psutil.Process", "psutil.process_iter", "threading.Thread", "threading.enumerate"),
    *("gc.get_objects", "gc.get_referrers", "gc.isenabled", "sys.getallocatedblocks", "sys._getframe"),
    *("tempfile.mkdtemp", "json.dumps", "pathlib.Path.read_text", "pathlib.Path.open", "ctypes.CDLL"),
    *("asyncio.all_tasks", "inspect.getsource", "linecache.getline"),
)
_CLOCKS: Final = {
    "stand still": "lambda: 1.0",
    "run backwards": "itertools.count(1e9, -1).__next__",
    "jump by years": "itertools.count(0, 1e9).__next__",
    "return NaN": "lambda: float('nan')",
}


def _list_replaced() -> Iterator[Fault]:
    category = "replaced functions"
    for name in _REPLACED:
        module = f"import inspect\nSAVED = {name}"
        for manner, value in (("raises", "refuse"), ("returns None", "nothing")):
            body = f"leak()\nif now(): {name} = {value}"
            yield Fault(f"{name} {manner}", category, body, LEAKS, module=module, undo=f"{name} = SAVED")
        if name.startswith(("time", "os", "gc", "psutil")):
            body = f"clean()\nif now(): {name} = refuse"
            yield Fault(f"{name} raises for good (clean)", category, body, CLEAN, module=module, lasting=True)
    module = "SAVED = time.monotonic, time.perf_counter, time.time"
    undo = "time.monotonic, time.perf_counter, time.time = SAVED"
    for title, value in _CLOCKS.items():
        code = f"time.monotonic = time.perf_counter = time.time = {value}"
        yield from _both(f"clocks {title}", category, code, undo, module=module)


_START: Final = "one = threading.Thread(target={}, daemon=True)\none.start()"
_THREADS: Final = {
    "a daemon without end": _START.format("threading.Event().wait"),
    "a thread that raises": _START.format("refuse") + "\none.join()",
    "200 threads at once": (
        "ready = threading.Barrier(201)\nmany = [threading.Thread(target=ready.wait) for _ in range(200)]\n"
        "for one in many: one.start()\nready.wait()\nfor one in many: one.join()"
    ),
    "a thread collects garbage": _START.format("lambda: [(gc.collect(), time.sleep(.002)) for _ in range(300)]"),
    "a thread forks": _START.format("lambda: [subprocess.run(['true']) for _ in range(40)]"),
    "the logging lock is held": _START.format("lambda: logging._lock.acquire()") + "\none.join()",
    "the import lock is held": (
        "import _imp\n" + _START.format("lambda: (_imp.acquire_lock(), time.sleep(2), _imp.release_lock())")
    ),
}
_HANGS: Final = {
    "deadlock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "deadlock with signals blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nthreading.Event().wait()"
    ),
    "deadlock, SIGTERM ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nthreading.Event().wait()",
}


def _list_threads() -> Iterator[Fault]:
    marks = f"{_FD}\n@pytest.mark.filterwarnings('ignore')"
    for name, code in _THREADS.items():
        yield from _both(name, "threads", code, marks=marks, lasting=name == "a thread forks")
    # The three descriptors of a loop stay: there is no clean counterpart.
    loop = "loop = asyncio.new_event_loop()\n" + _START.format("loop.run_forever")
    yield Fault("an event loop in a thread", "threads", f"leak()\n{_at_fifth(loop)}", LEAKS)
    settings: dict[str, Any] = {"leaves": True, "options": ("--leakcheck-max-time=1",)}
    for name, code in _HANGS.items():
        for mode, seconds in (("in place", 8), ("isolated", _HANG_SECONDS)):
            body = f"leak()\n{_at_fifth(code)}"
            yield Fault(f"{name} {mode}", "threads", body, LEAKS, seconds=seconds, modes=(mode,), **settings)


_WARNINGS: Final = {
    "unclosed file": "open(PATH)\nleak()",
    "thread raises": "if now():\n    one = threading.Thread(target=refuse)\n    one.start()\n    one.join()\nleak()",
    "__del__ in a cycle raises": (
        "if now():\n    one = type('Odd', (), {'__del__': refuse})()\n    one.self = one\nleak()"
    ),
    "coroutine is not awaited": "async def nothing_yet(): pass\nnothing_yet()\nleak()",
}
# What a test does, by the resource of its budget.
_AMOUNTS: Final = {
    "10^6 objects per iteration": ("fd", "[[] for _ in range(1_000_000)]\nleak()"),
    "10^5 objects kept per iteration": ("object", "KEPT.append([[] for _ in range(100_000)])"),
    "300 threads kept": (
        "fd",
        "if now():\n    for _ in range(300): threading.Thread(target=threading.Event().wait, daemon=True).start()\nleak()",
    ),
    "800 descriptors kept per iteration": ("fd", "for _ in range(800): leak()"),
    "100 children": ("fd", "if now(): KEPT.extend(subprocess.Popen(['sleep', '30']) for _ in range(100))\nleak()"),
    "1,000 temporary files": ("fd", "if now(): [os.close(tempfile.mkstemp()[0]) for _ in range(1000)]\nleak()"),
    "100 MiB per iteration": ("fd", "bytearray(100 << 20)\nleak()"),
    "nested 2,000 deep": ("object", "one = []\nfor _ in range(2_000): one = [one]\nKEPT.append(one)"),
    "20,000 types": ("fd", "if now(): KEPT.append([type('T', (), {}) for _ in range(20_000)])\nleak()"),
    "20 MB of output": ("fd", "if now(): print('x' * 20_000_000)\nleak()"),
    "objects that refuse inspection": (
        "object",
        "KEPT.append(type('Odd', (), {'__repr__': refuse, '__eq__': refuse, '__hash__': refuse, '__getattribute__': refuse, "
        "'__len__': refuse, '__class__': property(refuse)})())",
    ),
}
_OUTPUT: Final = {
    "sys.stdout is None": "sys.stdout = sys.stderr = None",
    "sys.__stdout__ is None": "sys.__stdout__ = sys.__stderr__ = None",
    "sys.stdout is closed": "sys.stdout.close()",
    "writing raises": "sys.stdout = sys.stderr = types.SimpleNamespace(write=refuse, flush=refuse)",
    "descriptor 1 is closed": "CLOSE(1)",
    "descriptor 2 is closed": "CLOSE(2)",
}


def _list_warnings_amounts_and_output() -> Iterator[Fault]:
    for name, body in _WARNINGS.items():
        yield Fault(f"-W error: {name}", "warnings as errors", body, LEAKS, options=("-W", "error"))
    for name, (resource, body) in _AMOUNTS.items():
        marks = f"@pytest.mark.{resource}_budget(0)"
        yield Fault(name, "amounts", body, LEAKS, marks=marks, leaves=True, seconds=120)
    for name, code in _OUTPUT.items():
        for title, options in ((name, ()), (f"{name} with -s", ("-s",))):
            yield Fault(title, "output", f"leak()\nif now(): {code}", LEAKS, options=options)


_ODD: Final = {
    "escape sequence": "a\x1b[31mb\x1b]0;title\x07",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "markup": "<script>alert(1)</script>&amp;",
    "colons and brackets": "a::b[c]d]",
    "5,000 letters": "x" * 5000,
    "right to left": "a\u202eb",
    "nothing": "",
    "option": "--leakcheck-isolate",
    "path": "../../etc/passwd",
    "format": "{0} %s $HOME `id`",
    "NUL": "a\\0b",
}
_EVIL: Final = "'evil\\x1b[31m\\x1b]0;pwned\\x07\\n'"
_NAMED: Final = {
    "file": ("fd", f"KEPT.append(OPEN({_EVIL}, os.O_CREAT))"),
    "temporary file": ("disk", f"tempfile.mkstemp({_EVIL})"),
    "type": ("object", f"KEPT.append(type({_EVIL}, (), {{}})())"),
    "thread": ("thread", f"threading.Thread(target=threading.Event().wait, name={_EVIL}, daemon=True).start()"),
    "child": (
        "process",
        f"KEPT.append(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)', {_EVIL}]))",
    ),
}


def _list_names() -> Iterator[Fault]:
    for name, odd in _ODD.items():
        marks = f"@pytest.mark.parametrize('x', [1], ids=[{odd!r}])\n{_FD}"
        yield Fault(f"id: {name}", "names", "leak()", LEAKS, arguments="x", marks=marks, lasting=True)
    for name, (resource, body) in _NAMED.items():
        marks = f"@pytest.mark.{resource}_budget(0)"
        yield Fault(f"name of a {name}", "names", body, LEAKS, marks=marks, leaves=True)
    body = f"leakcheck.gauge({_EVIL}, lambda: len(KEPT))\nKEPT.append(1)"
    yield Fault("name of a gauge", "names", body, LEAKS, arguments="leakcheck", marks="@pytest.mark.leakcheck")
    for name, file in (("newline", "test_a\nb.py"), ("escape", "test_a\x1b[31m.py")):
        yield Fault(f"file with {name}", "names", "leak()", LEAKS, file=file, lasting=True)


_GAUGES: Final = {
    "raises": "refuse()",
    "None": "None",
    "2**80": "1 << 80",
    "NaN": "float('nan')",
    "text": "'many'",
    "raises SystemExit": "sys.exit(0)",
    "slow": "time.sleep(0.05) or 1",
    "another type later": "1 if len(KEPT) < 8 else 'many'",
    "leaks itself": "leak() or 1",
}
_BEGUN: Final = "steps = leakcheck.steps(fd=0)\nnext(steps)\nleak()\n"
_LOOP: Final = "for step in leakcheck.steps(fd=0):\n    leak()\n    if step == {}: {}"
_LOOPS: Final = {
    "break at 0": _LOOP.format(0, "break"),
    "break at 9": _LOOP.format(9, "break"),
    "return at 1": _LOOP.format(1, "return"),
    "raise at 1": _LOOP.format(1, "raise ValueError"),
    "skip at 1": _LOOP.format(1, "pytest.skip()"),
    "never begun": "leakcheck.steps(fd=0)\nleak()",
    "closed": _BEGUN + "steps.close()",
    "kept and not continued": _BEGUN + "KEPT.append(steps)",
    "thrown into": _BEGUN + "with contextlib.suppress(ValueError): steps.throw(ValueError)",
    "in a thread": (
        "def work():\n    for _ in leakcheck.steps(fd=0): leak()\n"
        "one = threading.Thread(target=work)\none.start()\none.join()"
    ),
    "nested": (
        "for _ in leakcheck.steps(fd=0):\n    leak()\n    with contextlib.suppress(Exception):\n"
        "        for _ in leakcheck.steps(fd=0): leak()"
    ),
    "block left by an exception": (
        "with contextlib.suppress(ValueError), leakcheck.budget(fd=0):\n    leak()\n    raise ValueError"
    ),
    "block left by return": "with leakcheck.budget(fd=0):\n    leak()\n    return",
    "the child continues the loop": _LOOP.format("3 and not os.fork()", "continue"),
}


def _list_gauges_and_loops() -> Iterator[Fault]:
    for name, value in _GAUGES.items():
        body = f"leakcheck.gauge('odd', lambda: {value})\nleak()"
        yield Fault(f"gauge: {name}", "gauges", body, LEAKS, arguments="leakcheck")
    settings: dict[str, Any] = {"arguments": "leakcheck", "marks": "", "modes": ("in place",)}
    for name, body in _LOOPS.items():
        expected = ANY if name in ("in a thread", "block left by an exception") else LEAKS
        yield Fault(f"loop: {name}", "loops", body, expected, leaves="child" in name, **settings)


def _list_allocators() -> Iterator[Fault]:
    for library in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"):
        path = Path("/usr/lib/x86_64-linux-gnu") / library
        if path.exists():
            yield Fault(
                f"{library} under heap_budget",
                "allocators",
                "ctypes.CDLL(None).malloc(4096)",
                LEAKS,
                marks="@pytest.mark.heap_budget",
                never_ok=("heap",),
                environment={"LD_PRELOAD": str(path)},
                options=("--leakcheck-max-time=8",),
                seconds=120,
            )


def _list_plugins() -> Iterator[Fault]:
    category = "other plugins"
    for method, hangs in (("signal", "3"), ("thread", "(1 if AT == 1 else 3)")):
        yield Fault(
            f"pytest-timeout, {method}",
            category,
            f"leak()\nDONE.append(1)\nwhile len(DONE) >= {hangs}: pass",
            LEAKS,
            marks=f"@pytest.mark.timeout(2, method={method!r})\n{_FD}",
            plugins=("timeout",),
            leaves=True,
            seconds=_HANG_SECONDS,
            options=("--leakcheck-max-time=1",),
        )
    settings: dict[str, Any] = {"plugins": ("xdist",), "options": ("-n1",), "lasting": True, "leaves": True}
    for name, code in (("SIGKILL", "os.kill(os.getpid(), 9)"), ("os.listdir raises", "os.listdir = refuse")):
        yield Fault(f"xdist: {name} in a worker", category, f"leak()\nif now(): {code}", LEAKS, **settings)
