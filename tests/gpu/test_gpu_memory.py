"""Device memory: the ceiling is kept, idle frames move to the host, and a chunk that does not fit is halved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_device import needs

pytestmark = pytest.mark.gpu
HERE = Path(__file__).resolve().parent
SLACK = 16_000_000  # XGBoost rounds what it asks for, and goes past our ceiling


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


def scenario(name: str, folder: Path) -> dict[str, Any]:
    """What a process of its own found; see `memory_scenarios`."""
    needs("pylibcudf", "rmm", "nvtx")
    command = [sys.executable, str(HERE / "memory_scenarios.py"), name, str(folder)]
    root = HERE.parent.parent
    paths = [str(root), str(root / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_chunk_that_does_not_fit_under_the_ceiling_is_halved(folder: Path) -> None:
    found = scenario("hog_below_a_ceiling", folder)
    assert found["notes"], "it fitted, so that nothing was shown"
    assert "in chunks of" in found["notes"][0]
    assert found["same"]
    assert found["hog_is_whole"]
    assert found["peak"] <= found["limit"]
    assert found["pool_peak"] <= found["limit"]


def test_a_chunk_that_does_not_fit_on_the_device_is_halved(folder: Path) -> None:
    found = scenario("hog_on_the_device", folder)
    assert found["notes"], "it fitted, so that nothing was shown"
    assert found["same"]


def test_a_fixed_pool_takes_its_size_at_once_and_xgboost_lives_beside_it(folder: Path) -> None:
    found = scenario("fixed_pool", folder)
    assert found["pool"] <= found["taken_at_once"] < found["pool"] + 64_000_000
    assert found["peak"] <= found["pool"]
    assert {"reading", "training"} <= set(found["stages"])
    assert "asked for" in found["refused"]


def test_idle_frames_of_cudf_move_to_the_host(folder: Path) -> None:
    needs("cudf")
    found = scenario("spilling", folder)
    assert found["active"]
    assert found["spilled"] > 0
    assert found["same"]
    assert found["peak"] <= found["limit"]


def test_a_run_stays_under_its_ceiling(folder: Path) -> None:
    found = scenario("whole_run", folder)
    assert found["engine"] == "gpu"
    assert found["limit"] == 2_000_000_000
    assert found["pool_peak"] <= found["limit"] + SLACK
    told = found["told"]
    assert told is not None, "the run does not tell what it took of the device"
    assert told["measured_peak_bytes"] <= told["limit_bytes"] + SLACK
    assert told["measured_peak_bytes"] <= told["predicted_peak_bytes"]


def test_a_run_begins_with_all_that_an_earlier_one_has_left(folder: Path) -> None:
    found = scenario("one_run_after_the_other", folder)
    assert min(found["limits"]) > 0.95 * max(found["limits"])
    assert len(set(found["models"])) == 1
    assert "CudaAsyncViewMemoryResource" in found["pools"]  # or each array would be asked of the driver
