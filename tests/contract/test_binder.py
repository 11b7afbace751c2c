"""The binder itself: it knows what expressions are, and names every misuse with its line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("cudf") is None or importlib.util.find_spec("dask_cuda") is None:
    pytest.skip("needs the RAPIDS wheels: scripts/contract", allow_module_level=True)

from contract.binder import bind
from contract.walker import Report

BEFORE = """
from __future__ import annotations
import contextlib, sys
from collections.abc import Iterator
from typing import Any
import cudf, cupy, dask, nvtx, pynvml, rmm.mr
import pylibcudf as plc
import xgboost
from cuda.bindings import runtime
from dask_cuda import LocalCUDACluster
from distributed import Client, Future, LocalCluster
class Engine:
    def __init__(self, size: int) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=size)
        self.counts = rmm.mr.StatisticsResourceAdaptor(self.pool)
        self.futures: dict[str, Future] = {}
    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[cupy.cuda.Event]:
        with nvtx.annotate(name, domain="tabgpu"):
            yield cupy.cuda.Event(disable_timing=True)
def chunks(path: str) -> Iterator[plc.io.types.TableWithMetadata]:
    builder = plc.io.parquet.ParquetReaderOptions.builder(plc.io.types.SourceInfo([path]))
    reader = plc.io.parquet.ChunkedParquetReader(builder.build(), chunk_read_limit=1 << 20)
    while reader.has_next():
        yield reader.read_chunk()
def use(engine: Engine, frame: cudf.DataFrame, series: cudf.Series, array: cupy.ndarray, client: Client, thing: Any,
        resource: rmm.mr.DeviceMemoryResource, resources: list[rmm.mr.DeviceMemoryResource]) -> None:
""".lstrip()

GOOD = [
    "array.astype(cupy.float32, copy=False).get()",
    "frame.to_arrow(preserve_index=False).num_rows",
    "codes, levels = series.factorize(sort=True); codes.get(); levels.to_arrow()",
    "engine.counts.allocation_counts.peak_bytes",
    "with engine.stage('a') as event: event.record(engine.stream)",
    "for table in chunks('a'): cudf.DataFrame.from_pylibcudf(table).sort_values('a', ignore_index=True)",
    "[future.result(timeout=3) for future in engine.futures.values()]",
    "engine.futures.pop('a').cancel()",
    "client.submit(print, 1, sep='', pure=False)",
    "while isinstance(resources[-1], rmm.mr.UpstreamResourceAdaptor): resources.append(resources[-1].upstream_mr)",
    "if not isinstance(resource, rmm.mr.PoolMemoryResource): return\n    resource.pool_size()",
    "code, pool = runtime.cudaDeviceGetDefaultMemPool(0); rmm.mr.CudaAsyncViewMemoryResource(pool)",
    "dask.config.set({'distributed.scheduler.work-stealing': False})",
    "with xgboost.config_context(use_cuda_async_pool=True): pass",
    "sys.modules.get('cudf').set_option('spill', True)",
    "cudf.set_option('spill_on_demand', False)",
    "series.hash_values(method='xxhash64', seed=0)",
    "LocalCUDACluster(n_workers=2, rmm_pool_size='1GB', dashboard_address=None)",
]

BAD = [
    # names that are not there
    ("cupy.char.add(array, array)", "cupy has no name char"),
    ("cudf.merge_asof(frame, frame)", "cudf has no name merge_asof"),
    ("rmm.mr.get_current_device_resource_type()", "rmm.mr has no name get_current_device_resource_type"),
    ("from dask_cuda import explicit_comms_shuffle", "explicit_comms_shuffle cannot be imported"),
    ("series.idxmax()", "has no name idxmax"),
    ("engine.counts.allocation_counts.peak", "has no name peak"),
    ("with engine.stage('a') as event: event.recrod(engine.stream)", "Event has no name recrod"),
    ("for table in chunks('a'): table.table", "TableWithMetadata has no name table"),
    ("for future in engine.futures.values(): future.results()", "Future has no name results"),
    ("resource.upstream_mr", "DeviceMemoryResource has no name upstream_mr"),
    ("pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).usage", "pynvml has a name usage"),
    ("thing.read_all_chunks()", "no class of the libraries has a method read_all_chunks"),
    ("importlib = __import__('importlib'); cupy.cuda.MemoryPool().free_some_blocks()", "has no name free_some_blocks"),
    # arguments
    ("cupy.take(array, array, mode='clip')", "unexpected keyword argument 'mode'"),
    ("array.sort(order='a')", "unexpected keyword argument 'order'"),
    ("rmm.mr.PoolMemoryResource(resource, 1, 2, 3)", "too many positional arguments"),
    ("rmm.mr.LimitingResourceAdaptor(resource)", "missing a required argument: 'allocation_limit'"),
    ("plc.io.parquet.ParquetReaderOptions.builder()", "missing a required argument: 'source'"),
    ("runtime.cudaMemPoolGetAttribute(0)", "missing a required argument: 'attr'"),
    ("thing.wait_for_workers(2, 3, 4)", "no class takes these arguments"),
    ("chunks('a'); nvtx.push_range('a', colour='red')", "unexpected keyword argument 'colour'"),
    ("client.wait_for_workers(timeout=3)", "missing a required argument: 'n_workers'"),
    # keywords that would vanish
    ("LocalCUDACluster(n_workers=2, jit_unspill=True)", "has no keyword jit_unspill"),
    ("LocalCluster(n_workers=2, thread_per_worker=1)", "has no keyword thread_per_worker"),
    ("with xgboost.config_context(use_rapids=True): pass", "has no keyword use_rapids"),
    ("xgboost.collective.CommunicatorContext(dmlc_trackr_uri='a')", "has no keyword dmlc_trackr_uri"),
    # values
    ("frame.sort_values('a', inplace=True)", "would raise NotImplementedError"),
    ("frame.merge(frame, on='a', validate='1:1')", "would raise NotImplementedError"),
    ("series.hash_values(method='xxhash')", "as method, not 'xxhash'"),
    ("rmm.mr.PoolMemoryResource(resource, initial_pool_size=0.5)", "as initial_pool_size, not 0.5"),
    ("plc.io.parquet.ChunkedParquetReader(thing, chunk_read_limit='1MB')", "as chunk_read_limit, not '1MB'"),
    ("cudf.set_option('spill_limit', 1)", "cuDF has no option spill_limit"),
    ("dask.config.set({'distributed.scheduler.work-steeling': False})", "Dask has no setting"),
]


def report_on(folder: Path, lines: list[str]) -> tuple[Report, list[int]]:
    """What the binder says of a source with these statements, and the line of each."""
    text, places = BEFORE, []
    for line in lines:
        places.append(text.count("\n") + 1)
        text += f"    {line}\n"
    path = folder / "misuses.py"
    path.write_text(text)
    name = f"misuses_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return bind(path, module), places


@pytest.fixture(scope="module")
def misused(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Problem by line, of all that is in BAD."""
    report, places = report_on(tmp_path_factory.mktemp("bad"), [code for code, _ in BAD])
    found: dict[int, str] = {}
    for problem in report.problems:
        file, line, what = problem.split(":", 2)
        assert file == "misuses.py"
        found[places.index(int(line))] = what
    return found


def test_right_calls_are_bound_and_give_no_problem(tmp_path: Path) -> None:
    report, places = report_on(tmp_path, GOOD)
    assert report.problems == []
    assert report.loose == []
    assert report.opaque == []
    bound = {line for line in (int(call.where.partition(":")[2]) for call in report.bound) if line >= places[0]}
    without_calls = [code for code in GOOD if "peak_bytes" in code or "upstream_mr" in code]
    assert len(bound) == len(GOOD) - len(without_calls)


@pytest.mark.parametrize("which", range(len(BAD)), ids=[code[:60] for code, _ in BAD])
def test_a_misuse_is_named_with_its_line(which: int, misused: dict[int, str]) -> None:
    assert BAD[which][1] in misused.get(which, "no problem found")


def test_a_method_of_something_unknown_is_looked_at_in_the_libraries_rooms_alone(tmp_path: Path) -> None:
    report_on(tmp_path, ["thing.read_all_chunks()"])
    elsewhere = bind(tmp_path / "misuses.py", sys.modules[f"misuses_{tmp_path.name}"], strict=False)
    assert elsewhere.problems == []
