"""What tests of device memory do in a process of its own: pools and spilling are set up once for a whole process.

    python memory_scenarios.py NAME FOLDER

prints one JSON object. Nothing is judged here; `test_gpu_memory.py` does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy  # noqa: TID251 - the device under test
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gpu_check.device import watching

from tabgpu.engine.gpu import GpuEngine
from tabgpu.engine.halving import read_halving
from tabgpu.engine.memory import MemorySettings
from tabgpu.files import find, make_parts, read_footer
from tabgpu.schema import unify

MB = 10**6
N_ROWS, N_COLUMNS = 1_000_000, 16  # 128 MB once read


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(SCENARIOS[name](folder)))


def engine_with(**settings: Any) -> GpuEngine:
    engine = GpuEngine()
    engine.setup(MemorySettings(**settings))
    return engine


def pool_used() -> int:
    """Bytes in use in CUDA's default pool, asked of the driver through CuPy.

    Not its high-water mark, which the engine resets as stages begin and end.
    """
    runtime = cupy.cuda.runtime
    pool = runtime.deviceGetDefaultMemPool(cupy.cuda.Device().id)
    return int(runtime.memPoolGetAttribute(pool, runtime.cudaMemPoolAttrUsedMemCurrent))


def numbers(folder: Path) -> tuple[Any, Any]:
    """The one part and the columns of a file of numbers, in small row groups."""
    path = folder / "numbers.parquet"
    if not path.exists():
        rng = np.random.default_rng(0)
        columns = {f"x{i:02d}": rng.normal(size=N_ROWS) for i in range(N_COLUMNS)}
        pq.write_table(pa.table(columns), path, row_group_size=50_000, compression="none", use_dictionary=False)
    footers = [read_footer(f) for f in find(str(path), folder, "data.source")]
    (part,) = make_parts(footers, 10**9)
    return part, list(unify(footers, {}).columns.values())


def read_all(engine: GpuEngine, folder: Path, chunk_rows: int, notes: list[str]) -> str:
    """Digest of all rows of the file of numbers, column by column."""
    part, columns = numbers(folder)
    digests = {c.name: hashlib.sha256() for c in columns}
    for chunk in read_halving(engine, part, columns, chunk_rows, note=notes.append):
        for name, column in chunk.items():
            digests[name].update(engine.to_host(column.values).tobytes())
        del chunk
    return hashlib.sha256("".join(d.hexdigest() for d in digests.values()).encode()).hexdigest()


def truth(folder: Path) -> str:
    """The same digest of what was written."""
    numbers(folder)
    table = pq.read_table(folder / "numbers.parquet")
    digests = [hashlib.sha256(table[n].to_numpy().tobytes()).hexdigest() for n in table.column_names]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def hog_below_a_ceiling(folder: Path) -> dict[str, Any]:
    """A CuPy array holds most of what the ceiling allows; a file is read whose chunks do not fit beside it."""
    engine = engine_with(limit_bytes=800 * MB, spill=False)
    read_all(engine, folder, 50_000, [])  # kernels are loaded, and what they take is taken
    hog = cupy.ones(650 * MB // 8)
    notes: list[str] = []
    with watching(pool_used, 0.001) as most:
        found = read_all(engine, folder, N_ROWS, notes)
        pool_peak = most()
    whole = float(hog.sum())
    use = engine.memory
    return {
        "same": found == truth(folder),
        "notes": notes,
        "hog_is_whole": whole == hog.size,
        "peak": use.peak_bytes,
        "pool_peak": pool_peak,
        "limit": use.limit_bytes,
    }


def hog_on_the_device(folder: Path) -> dict[str, Any]:
    """The same, with the device itself all but full, and no ceiling of ours: the driver refuses."""
    engine = engine_with(spill=False)
    read_all(engine, folder, 50_000, [])
    engine.release()
    free, _ = cupy.cuda.runtime.memGetInfo()
    hog = cupy.cuda.runtime.malloc(free - 160 * MB)  # past all pools, as another process would
    notes: list[str] = []
    try:
        found = read_all(engine, folder, N_ROWS, notes)
    finally:
        cupy.cuda.runtime.free(hog)
    return {"same": found == truth(folder), "notes": notes}


def fixed_pool(folder: Path) -> dict[str, Any]:
    """A fixed pool reads and gives blocks; XGBoost trains beside it."""
    import xgboost

    free_before, _ = cupy.cuda.runtime.memGetInfo()
    engine = engine_with(pool="fixed", pool_bytes=700 * MB, limit_bytes=2_000 * MB, spill=False)
    free_after, _ = cupy.cuda.runtime.memGetInfo()
    part, columns = numbers(folder)
    names = [c.name for c in columns]
    with engine.stage("reading"):
        chunk = next(iter(engine.read(part, columns, 200_000)))
        rows = engine.matrix(chunk, names, 200_000)
    del chunk
    with engine.stage("training"), engine.training():
        label = (rows[:, 0] > 0).astype("float32")
        made = xgboost.QuantileDMatrix(rows, label=label, feature_names=names)
        model = xgboost.train({"device": "cuda", "objective": "binary:logistic", "max_depth": 6}, made, 5)
    engine.check_trained(model)
    try:
        cupy.empty(800 * MB // 8)
        refused = ""
    except Exception as error:  # noqa: BLE001 - which one it is, is what is asked
        refused = engine.explain(error) if engine.is_out_of_memory(error) else f"not known: {error!r}"
    use = engine.memory
    return {
        "taken_at_once": free_before - free_after,
        "pool": 700 * MB // 256 * 256,
        "peak": use.peak_bytes,
        "stages": sorted(use.stage_peaks),
        "refused": refused,
    }


def spilling(folder: Path) -> dict[str, Any]:
    """Frames of cuDF beyond the ceiling: the idle ones move to the host, and come back whole."""
    engine = engine_with(limit_bytes=600 * MB)
    import cudf  # noqa: TID251 - the frames under test

    rows = 100 * MB // 8
    frames = [cudf.DataFrame({"x": cudf.Series(range(rows), dtype="int64") + i}) for i in range(8)]
    sums = [int(frame["x"].sum()) for frame in frames]
    expected = [rows * (rows - 1) // 2 + i * rows for i in range(8)]
    use = engine.memory
    active = engine._memory is not None and engine._memory.spilling()  # whether the hook is in place
    return {
        "active": active,
        "spilled": use.spilled_bytes,
        "same": sums == expected,
        "peak": use.peak_bytes,
        "limit": use.limit_bytes,
    }


def whole_run(folder: Path) -> dict[str, Any]:
    """A pipeline under a small ceiling: what the pool had in use at most, as the driver says."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tables import pipeline, visits, write_parts

    import tabgpu

    source = write_parts(visits(200_000), folder / "visits", [120_000, 80_000], 40_000)
    config = pipeline(source, folder / "runs")
    with watching(pool_used, 0.001) as most:
        run = tabgpu.run(config, set={"engine": "gpu", "memory.device_limit": "2GB"})
        pool_peak = most()
    return {
        "engine": run.plan.engine,
        "planned": run.plan.device_peak_bytes,
        "limit": run.plan.device_limit_bytes,
        "pool_peak": pool_peak,
        "told": run.summary.get("device_memory"),
    }


def one_run_after_the_other(folder: Path) -> dict[str, Any]:
    """Runs in one process, whose limits are taken of what is free; then a model that is asked without any plan."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import rmm.mr  # noqa: TID251 - what it is set to is asked
    from tables import pipeline, visits, write_parts

    import tabgpu
    from tabgpu.engine import resolve
    from tabgpu.engine.gpu.memory import resources

    source = write_parts(visits(20_000), folder / "again", [20_000], 10_000)
    config = pipeline(source, folder / "runs again")
    pools = ("fixed", "async", "fixed", "async")
    runs = [tabgpu.run(config, set={"engine": "gpu", "memory.pool": pool}) for pool in pools]
    resolve("gpu")[0].begin()
    runs[-1].model.predict(str(source))
    return {
        "limits": [run.plan.device_limit_bytes for run in runs],
        "models": [run.summary["model_digest"] for run in runs],
        "pools": [type(r).__name__ for r in resources(rmm.mr.get_current_device_resource())],
    }


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    one.__name__: one
    for one in (hog_below_a_ceiling, hog_on_the_device, fixed_pool, spilling, whole_run, one_run_after_the_other)
}

if __name__ == "__main__":
    main()
