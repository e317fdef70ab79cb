"""aiohttp: glibc keeps each new value of an environment variable, such as a proxy at a random port."""

import ctypes
import os


class MallInfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns: ten numbers, of which the eighth is the bytes in use."""

    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallInfo
ITERATIONS = 1000


def grow(*, new_values: bool) -> str:
    """Set a variable in each iteration; return the bytes in use before and after."""
    os.environ["http_proxy"] = "http://127.0.0.1:40000"
    before = mallinfo2().field_7
    for number in range(ITERATIONS):
        os.environ["http_proxy"] = f"http://127.0.0.1:{40001 + number * new_values}"
    return f"{before:,} -> {mallinfo2().field_7:,} bytes in use"


grow(new_values=False)
print(f"{ITERATIONS} iterations with one value: {grow(new_values=False)}; with new values: {grow(new_values=True)}")
