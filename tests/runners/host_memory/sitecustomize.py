"""For workers without a GPU: RMM's resources over host memory, which RMM itself offers for its own tests.

Python imports a module of this name at its start, from the folder that PYTHONPATH names.
"""

from __future__ import annotations

import ctypes
from typing import Any

import rmm

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]
_CURRENT: list[Any] = []


class CudaAsyncMemoryResource(rmm.mr.CallbackMemoryResource):
    """Takes the options of the real one."""

    def __init__(self, initial_pool_size: int | None = None, release_threshold: int | None = None) -> None:
        assert all(size is None or isinstance(size, int) for size in (initial_pool_size, release_threshold))
        super().__init__(lambda size, stream: _LIBC.malloc(size), lambda pointer, size, stream: _LIBC.free(pointer))


rmm.mr.CudaAsyncMemoryResource = CudaAsyncMemoryResource
rmm.mr.set_current_device_resource = _CURRENT.append
rmm.mr.get_current_device_resource = lambda: _CURRENT[-1]
