"""When a training is taken to be stuck: decided from what workers tell, with no cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra 'cluster'")
pytest.importorskip("xgboost.collective", reason="needs XGBoost")

from xgboost.core import XGBoostError

from tabgpu.errors import ConfigError
from tabgpu.runners.dask import loss, member
from tabgpu.runners.dask.loss import Patience

PATIENCE = Patience(stuck_s=45, slow_s=50, slow_factor=20)


def pulse(stage: str = "rounds", chunks: int = 0, rounds: int = 0, cpu_s: float = 0.0) -> dict[str, Any]:
    return {"stage": stage, "chunks": chunks, "rounds": rounds, "cpu_s": cpu_s}


def progress(monkeypatch: pytest.MonkeyPatch) -> tuple[loss._Progress, list[float]]:
    """A judge whose clock is the last number of a list."""
    clock = [0.0]
    monkeypatch.setattr(loss.time, "monotonic", lambda: clock[-1])
    return loss._Progress(PATIENCE), clock


def verdicts(monkeypatch: pytest.MonkeyPatch, told: dict[float, dict[str, Any]]) -> list[str | None]:
    judge, clock = progress(monkeypatch)
    found = []
    for now, pulses in told.items():
        clock.append(now)
        found.append(judge.stuck(pulses, now))
    return found


def test_nobody_who_computes_reads_or_ends_rounds_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = pulse("matrix")
    computes = {t: {"a": pulse("matrix", cpu_s=0.5 * t), "b": waits} for t in range(0, 4000, 40)}
    reads = {t: {"a": pulse("blocks", chunks=t // 40), "b": waits} for t in range(0, 4000, 40)}
    trains = {t: {"a": pulse(rounds=t // 40), "b": pulse(rounds=t // 40)} for t in range(0, 4000, 40)}
    for told in (computes, reads, trains):
        assert not any(verdicts(monkeypatch, told))


def test_all_who_only_answer_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {t: {"a": pulse(rounds=9, cpu_s=0.01 * t), "b": pulse(rounds=9)} for t in range(0, 60, 2)}
    found = verdicts(monkeypatch, told)
    first = next(i for i, said in enumerate(found) if said)
    assert 44 <= 2 * first <= 50
    assert found[first] == "nobody computed or got further for 45 s"


def test_a_round_that_takes_many_times_longer_than_all_before_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {t: {"a": pulse(rounds=min(t, 100), cpu_s=float(t))} for t in range(0, 160, 2)}
    found = verdicts(monkeypatch, busy)
    assert found.index("a round takes 52 s, and none before took more than 2.0 s") == 76
    slow = {
        t: {"a": pulse(rounds=t // 200, cpu_s=float(t))} for t in range(0, 3000, 10)
    }  # the first one is the measure
    assert not any(verdicts(monkeypatch, slow)[40:])


def raised_in_training(words: str) -> None:
    """What `fit_booster` makes of XGBoost's words."""
    with member._peers():
        try:
            raise XGBoostError(f"[22:08:16] result.cc:83: {words}\nStack trace:\n  [bt] 0")
        except XGBoostError as error:
            raise ConfigError("XGBoost refuses a parameter", "Expected another", "Correct it") from error


@pytest.mark.parametrize("words", ["Ring allreduce small failed", "Ring allgather failed", "[socket.h:79]: Poll error"])
def test_a_broken_connection_is_no_fault_of_a_parameter(words: str) -> None:
    with pytest.raises(member.PeerError, match=re.escape(words)):
        raised_in_training(words)


def test_what_is_a_parameters_fault_stays_so() -> None:
    with pytest.raises(ConfigError):
        raised_in_training("param.cc:3: max_depth is negative")
