"""A program with another malloc than glibc's: its own statistics are read, or no test passes on its heap."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from projects import Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library")

# Hands out memory from one end to the other and takes nothing back. Each block begins with its size.
_SOURCE = """
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64 };
static char *base;
static size_t used;
static const size_t ROOM = (size_t)1 << 36;

__attribute__((constructor(101))) static void reserve(void) {
    if (!base)
        base = mmap(0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void *take(size_t alignment, size_t size) {
    if (!base) reserve();
    if (alignment < ALIGN) alignment = ALIGN;
    size_t whole = (size + 2 * alignment + ALIGN - 1) / ALIGN * ALIGN;
    size_t at = __atomic_fetch_add(&used, whole, __ATOMIC_RELAXED);
    char *block = (char *)(((size_t)(base + at) + 2 * alignment - 1) / alignment * alignment);
    ((size_t *)block)[-1] = size;
    return block;
}

void *malloc(size_t size) { return take(ALIGN, size); }
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return take(ALIGN, count * size); }
void *memalign(size_t alignment, size_t size) { return take(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return take(alignment, size); }
void *valloc(size_t size) { return take(4096, size); }
size_t malloc_usable_size(void *block) { return block ? ((size_t *)block)[-1] : 0; }
int posix_memalign(void **block, size_t alignment, size_t size) { *block = take(alignment, size); return 0; }
void *realloc(void *block, size_t size) {
    void *moved = take(ALIGN, size);
    size_t before = malloc_usable_size(block);
    return block ? memcpy(moved, block, before < size ? before : size) : moved;
}
"""


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a malloc of its own, without statistics."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler is installed; tests/unit has the same with a simulated library")
    folder = tmp_path_factory.mktemp("allocator")
    source, library = folder / "bump.c", folder / "libbump.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def test_native_leaks_do_not_pass(project: Project, allocator: Path) -> None:
    outcome = project.run_test(
        """
        import ctypes
        import pytest

        LIBC = ctypes.CDLL(None)

        @pytest.mark.heap_budget(0)
        def test_named(): LIBC.malloc(4096)

        @pytest.mark.leakcheck
        def test_by_default(): LIBC.malloc(4096)
        """,
        "-rs",
        LD_PRELOAD=str(allocator),
    )
    assert outcome.verdicts["test_named", "heap"] == "unavailable", outcome.text
    # Not asked for by name, it is not read, and the summary says so.
    assert ("test_by_default", "heap") not in outcome.verdicts
    assert outcome.recordings[1]["unavailable"]["heap"].startswith("malloc is not glibc's: ")
    assert "not read here: heap (malloc is not glibc's" in outcome.text
    assert outcome.last_line == "1 passed, 1 skipped"
    assert f"heap: malloc is not glibc's: it is from {allocator.name}" in outcome.text
    strict = project.run("--leakcheck-missing=fail", "--leakcheck-isolate", "-k", "named", LD_PRELOAD=str(allocator))
    assert strict.last_line == "1 failed, 1 deselected", strict.text
    plain = project.run()
    assert plain.verdicts["test_named", "heap"] == "leak"


# By library, whether its own statistics are read.
_INSTALLED = {"libjemalloc.so.2": True, "libtcmalloc_minimal.so.4": True, "libmimalloc.so.2": False}


@pytest.mark.parametrize("name", _INSTALLED)
def test_installed_allocators_are_read_by_their_own_statistics(project: Project, name: str) -> None:
    library = next((one for one in Path("/usr/lib").glob(f"**/{name}") if one.is_file()), None)
    if library is None:
        pytest.skip(f"{name} is not installed; tests/unit has the same with a simulated library")
    outcome = project.run_test(
        """
        import ctypes
        import threading
        import pytest

        LIBC = ctypes.CDLL(None)
        LIBC.malloc.restype = ctypes.c_void_p
        LIBC.free.argtypes = [ctypes.c_void_p]

        @pytest.mark.heap_budget(0)
        def test_leaky(): LIBC.malloc(4096)

        @pytest.mark.heap_budget(0)
        @pytest.mark.leakcheck(isolate=True)
        def test_leaky_alone(): LIBC.malloc(4096)

        @pytest.mark.heap_budget(0)
        def test_clean(): LIBC.free(LIBC.malloc(4096))

        @pytest.mark.heap_budget(0)
        def test_clean_threads():
            threads = [threading.Thread(target=lambda: [bytes(5000) for _ in range(50)]) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        """,
        LD_PRELOAD=str(library),
    )
    clean = {outcome.verdicts["test_clean", "heap"], outcome.verdicts["test_clean_threads", "heap"]}
    leaky = {outcome.verdicts["test_leaky", "heap"], outcome.verdicts["test_leaky_alone", "heap"]}
    if _INSTALLED[name]:
        assert leaky == {"leak"}, outcome.text
        assert outcome.verdicts["test_clean", "heap"] == "ok"
        # The threads' caches of freed blocks count as in use with jemalloc.
        assert clean <= {"ok", "inconclusive"}, outcome.text
    else:
        assert leaky | clean == {"unavailable"}, outcome.text
