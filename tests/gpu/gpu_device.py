"""Whether there is a device to test on, and what tests of it share.

With TABGPU_GPU_STANDIN=1 the CPU engine stands in for the device, so that these tests are known to run to their end
where no GPU is (`scripts/gpu-check --dry`). What a stand-in cannot have (libcudf, device memory) is skipped there.
"""

from __future__ import annotations

import ctypes
import functools
import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

STANDIN = os.environ.get("TABGPU_GPU_STANDIN") == "1"


@functools.cache
def no_device() -> str:
    """Why there is no device to test on; empty where there is one. Imports nothing of CUDA's."""
    if STANDIN:
        return ""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU: there is no NVIDIA driver"
    code, count = driver.cuInit(0), ctypes.c_int(0)
    if code or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return f"no GPU: the driver answers {code} and shows {count.value} devices"
    return "" if find_spec("cupy") else "CuPy is not installed"


def needs(*modules: str) -> None:
    """Skip unless these are installed; a stand-in has none of them."""
    if STANDIN:
        pytest.skip("a stand-in for the device")
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")


def same_floats(left: Any, right: Any, relative: float) -> bool:
    """Whether two arrays are equal to a relative error, missing values in the same places."""
    return bool(np.isclose(left, right, rtol=relative, atol=0, equal_nan=True).all())
