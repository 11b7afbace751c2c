"""Which runner does the work."""

from __future__ import annotations

import sys

import pytest

from tabgpu import runners
from tabgpu.config import Cluster
from tabgpu.errors import ConfigError


def test_without_a_cluster_the_work_is_done_here() -> None:
    runner, reason = runners.resolve(None)
    assert (runner.name, runner.workers, reason) == ("serial", 1, "no cluster is asked for")


def test_without_dask_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delattr(runners, "dask", raising=False)
    for name in [n for n in sys.modules if n.startswith("tabgpu.runners.dask")]:
        monkeypatch.delitem(sys.modules, name)
    for ask in (runners.resolve, runners.look):
        with pytest.raises(ConfigError, match=r"Dask cannot be imported.*tabgpu\[cluster\]"):
            ask(Cluster(workers=2))


def test_with_dask_nothing_is_started_before_it_is_entered() -> None:
    pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")
    runner, reason = runners.resolve(Cluster(workers=3))
    assert (runner.name, runner.workers, reason) == ("dask", 3, "cluster.workers is 3")
