"""The C library with its types declared: what leaks here is out of sight of Python."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from ctypes import c_char_p, c_int, c_long, c_size_t, c_uint, c_ulong, c_void_p
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_LIBC, name)
    function.restype, function.argtypes = result, arguments
    return function


malloc: Final = _declare("malloc", c_void_p, c_size_t)
calloc: Final = _declare("calloc", c_void_p, c_size_t, c_size_t)
strdup: Final = _declare("strdup", c_void_p, c_char_p)
free: Final = _declare("free", None, c_void_p)
dup: Final = _declare("dup", c_int, c_int)
opendir: Final = _declare("opendir", c_void_p, c_char_p)
closedir: Final = _declare("closedir", c_int, c_void_p)
regcomp: Final = _declare("regcomp", c_int, c_void_p, c_char_p, c_int)
regfree: Final = _declare("regfree", None, c_void_p)
shm_open: Final = _declare("shm_open", c_int, c_char_p, c_int, c_uint)
shm_unlink: Final = _declare("shm_unlink", c_int, c_char_p)
sem_open: Final = _declare("sem_open", c_void_p, c_char_p, c_int, c_uint, c_uint)
sem_close: Final = _declare("sem_close", c_int, c_void_p)
sem_unlink: Final = _declare("sem_unlink", c_int, c_char_p)
pthread_create: Final = _declare("pthread_create", c_int, c_void_p, c_void_p, c_void_p, c_void_p)
pthread_join: Final = _declare("pthread_join", c_int, c_ulong, c_void_p)
pthread_cancel: Final = _declare("pthread_cancel", c_int, c_ulong)
_mmap: Final = _declare("mmap", c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_long)
munmap: Final = _declare("munmap", c_int, c_void_p, c_size_t)

# For a thread that waits until it is cancelled, and for one that ends at once.
PAUSE: Final = ctypes.cast(_LIBC.pause, c_void_p)
GETPID: Final = ctypes.cast(_LIBC.getpid, c_void_p)


def map_pages(size: int, descriptor: int = -1) -> int:
    """Map anonymous memory, or the beginning of a file, and return where."""
    flags = mmap.MAP_PRIVATE if descriptor >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    assert isinstance(address, int)
    assert address != c_void_p(-1).value, "mmap failed"
    return address


def reserve(size: int) -> int:
    """Map memory that may not be accessed, and return where."""
    address = _mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert isinstance(address, int)
    return address


def start_thread(routine: Any) -> int:
    """Start a thread that Python knows nothing of, and return its handle."""
    handle = c_ulong()
    assert pthread_create(ctypes.byref(handle), None, routine, None) == 0, "pthread_create failed"
    return handle.value


def stop_thread(handle: int) -> None:
    """Cancel a thread that waits, and join it."""
    pthread_cancel(handle)
    pthread_join(handle, None)


def addresses() -> array[int]:
    """Where to note what is to be freed at the end. The numbers lie in place: a list would retain an int per call."""
    return array("Q")
