"""What XGBoost raises becomes an error of tabgpu: without its trace, and by what it is about."""

from __future__ import annotations

import pytest
import xgboost

from tabgpu.errors import ConfigError, DataError, ResourceError, TabgpuError
from tabgpu.train.refusals import refusals

TRACE = "\nStack trace:\n  [bt] (0) libxgboost.so(+0x110)\n"


def raised(text: str, of_parameters: bool = False) -> TabgpuError:
    with pytest.raises(TabgpuError) as caught, refusals("reg:gamma", of_parameters=of_parameters):
        raise xgboost.core.XGBoostError(text)
    return caught.value


def test_labels_are_the_datas_once_the_parameters_are_known_to_be_right() -> None:
    text = "[20:26:24] /src/obj.cu:83: Check failed: is_valid: label must be positive" + TRACE
    error = raised(text)
    assert isinstance(error, DataError)
    assert error.happened == "The target's values do not suit the objective 'reg:gamma': label must be positive."
    assert isinstance(raised(text, of_parameters=True), ConfigError)
    assert isinstance(raised("[1:2:3] a.cu:1: Check failed: mislabelled > 0" + TRACE), ConfigError)


@pytest.mark.parametrize("text", ["std::bad_alloc", "[1:2:3] a.cc:4: cudaErrorMemoryAllocation: out of memory" + TRACE])
def test_too_little_memory(text: str) -> None:
    error = raised(text)
    assert isinstance(error, ResourceError)
    assert "Stack trace" not in str(error)


def test_objectives_are_those_of_the_installed_version() -> None:
    candidates = "".join(f"Objective candidate: {name}\n" for name in ("reg:gamma", "binary:hinge"))
    error = raised(f"[1:2:3] a.cc:2: Unknown objective function: `reg:gama`\n{candidates}" + TRACE)
    assert str(error).startswith("XGBoost has no objective 'reg:gama'. Did you mean 'reg:gamma'?")
    assert "hinge" not in str(error)


def test_errors_of_our_own_pass() -> None:
    ours = DataError("a", "b", "c")
    with pytest.raises(DataError) as caught, refusals("reg:gamma", of_parameters=True):
        raise ours
    assert caught.value is ours
    with pytest.raises(OSError, match="gone"), refusals("reg:gamma", of_parameters=True):
        raise OSError("gone")
