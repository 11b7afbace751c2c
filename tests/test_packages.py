from __future__ import annotations

import importlib.metadata
import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabgpu import packages
from tabgpu.packages import Finding, device_problems, family, missing_for_gpu, problems, xgboost_build

CU12 = {
    "xgboost-cu12": "3.4.1",
    "cudf-cu12": "26.10.2",
    "pylibcudf-cu12": "26.10.2",
    "rmm-cu12": "26.10.0",
    "dask-cuda": "26.10.0",
    "rapids-dask-dependency": "26.10.0",
    "cupy-cuda12x": "14.2.0",
    "nvidia-nccl-cu12": "2.32.3",
    "numpy": "2.4.6",
    "pandas": "3.0.6",
    "pyarrow": "26.0.1",
    "dask": "2026.7.1",
    "distributed": "2026.7.1",
    "numba": "0.64.0",
    "numba-cuda": "0.30.4",
    "nvidia-ml-py": "13.615.71",
}
CU13 = {
    "xgboost": "3.4.1",
    "xgboost-cu13": "3.4.1",
    "cudf-cu13": "26.10.2",
    "rmm-cu13": "26.10.0",
    "cupy-cuda13x": "14.2.0",
    "nvidia-nccl-cu13": "2.32.3",
    "nvidia-ml-py": "13.615.71",
    "pandas": "3.0.6",
}
CONDA = {"xgboost": "3.4.1", "cudf": "26.10.2", "rmm": "26.10.0", "cupy": "14.2.0", "nvidia-ml-py": "13.615.71"}
CPU = {"xgboost-cpu": "3.4.1", "numpy": "2.5.5", "pandas": "3.1.1", "dask": "2026.9.0"}  # no pins without RAPIDS


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    "installed",
    [CU12, CU13, CONDA, CPU, {"xgboost": "3.2.0"}, {"xgboost-cpu": "3.2.0"}, CPU | {"cupy-cuda12x": "13.0"}],
)
def test_what_goes_together(installed: dict[str, str]) -> None:
    assert problems(installed, (3, 12)) == []


def test_this_environment_is_described_from_metadata_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = packages.installed()
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert set(found) <= set(packages.NAMES)
    assert list(found) == [name for name in packages.NAMES if name in found]
    versions = {"xgboost-cpu": "3.4.1", "rmm-cu12": None}  # the latter's metadata are empty

    def version(name: str) -> str | None:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(packages, "version", version)
    assert packages.installed() == {"xgboost-cpu": "3.4.1"}


# XGBoost


@pytest.mark.parametrize("names", list(itertools.combinations(["xgboost", "xgboost-cpu", "xgboost-cu12"], 2)))
@pytest.mark.parametrize("version", ["3.2.0", "3.4.1"])
def test_two_builds_of_xgboost(names: tuple[str, str], version: str) -> None:
    installed = dict.fromkeys(names, version)
    finding = only(problems(installed, (3, 12)))
    assert (finding.name, finding.severity) == ("XGBoost", "broken")
    assert all(f"{name} {version}" in finding.happened for name in names)
    assert finding.remedy == f"Run: pip uninstall -y {' '.join(names)}; pip install 'tabgpu[cpu]'"
    assert xgboost_build(installed) is None


def test_the_wish_for_xgboost_goes_with_it() -> None:
    assert problems({"xgboost-cu13": "3.4.1", "xgboost": "3.4.1"}, (3, 12)) == []
    finding = only(problems({"xgboost-cu13": "3.4.1", "xgboost": "3.4.1", "xgboost-cpu": "3.4.1"}, (3, 12)))
    assert "pip uninstall -y xgboost xgboost-cpu xgboost-cu13;" in finding.remedy


def test_the_build_that_is_kept_is_that_of_rapids() -> None:
    finding = only(problems(CU12 | {"xgboost-cpu": "3.4.1"}, (3, 12)))
    assert finding.remedy.endswith("pip install 'tabgpu[cu12]'")
    finding = only(problems(CU13 | {"xgboost-cpu": "3.4.1"}, (3, 12)))
    assert finding.remedy.endswith("pip install 'tabgpu[cu13]'")


def test_no_xgboost() -> None:
    finding = only(problems({"numpy": "2.0"}, (3, 12)))
    assert (finding.severity, finding.remedy) == ("broken", "Run: pip install 'tabgpu[cpu]'")
    left = {name: v for name, v in CU12.items() if name != "xgboost-cu12"}
    assert only(problems(left, (3, 12))).remedy == "Run: pip install 'tabgpu[cu12]'"


def test_xgboost_without_cuda_or_too_old_for_cudf() -> None:
    left = {name: v for name, v in CU12.items() if name != "xgboost-cu12"}
    finding = only(problems(left | {"xgboost-cpu": "3.4.1"}, (3, 12)))
    assert "cannot use a GPU" in finding.happened
    assert finding.remedy == "Run: pip uninstall -y xgboost-cpu; pip install 'tabgpu[cu12]'"
    finding = only(problems(left | {"xgboost": "3.2.0"}, (3, 12)))
    assert (finding.happened, finding.expected) == ("XGBoost is 3.2.0", "cuDF 26.10 breaks XGBoost before 3.3")


def test_builds_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert xgboost_build(CU12) == "cu12"
    assert xgboost_build(CU13) == "cu13"
    assert xgboost_build({}) is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert xgboost_build({"xgboost": "3.4.1"}) == "cpu"


# RAPIDS


def test_families_and_what_is_missing() -> None:
    assert [family(installed) for installed in (CU12, CU13, CONDA, CPU)] == ["cu12", "cu13", None, None]
    assert [missing_for_gpu(installed) for installed in (CU12, CU13, CONDA)] == [[], [], []]
    assert missing_for_gpu(CPU) == ["cudf", "rmm", "cupy", "nvidia-ml-py", "XGBoost with CUDA"]


@pytest.mark.parametrize("name", ["cudf-cu12", "rmm-cu12", "cupy-cuda12x", "nvidia-ml-py"])
def test_rapids_in_part(name: str) -> None:
    finding = only(problems({n: v for n, v in CU12.items() if n != name}, (3, 12)))
    assert finding.severity == "broken"
    assert f"{name.split('-cu')[0]} is not installed" in finding.happened


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([n for n in CU12 if CU12[n].startswith("26.10")]), st.sampled_from(["26.08.1", "26.12.00a3"]))
def test_releases_that_differ(name: str, version: str) -> None:
    found = problems(CU12 | {name: version}, (3, 12))
    (finding,) = [f for f in found if f.name == "RAPIDS"]
    assert finding.severity == "broken"
    assert f"{name} {version[:5]}" in finding.happened
    assert "26.10" in finding.happened


def test_another_release_is_not_tested() -> None:
    other = {name: v.replace("26.10", "26.12") for name, v in CU12.items()} | {"pandas": "3.1.0"}
    finding = only(problems(other, (3, 12)))  # and has pins of its own
    assert (finding.severity, finding.happened) == ("warning", "RAPIDS is 26.12")


def test_packages_for_two_generations() -> None:
    finding = only([f for f in problems(CU12 | {"cudf-cu13": "26.10.2"}, (3, 12)) if f.name == "CUDA packages"])
    assert finding.severity == "broken"
    assert finding.remedy == "Run: pip uninstall -y cudf-cu12 cudf-cu13; pip install 'tabgpu[cu12]'"
    found = problems({n: v for n, v in CU12.items() if n != "xgboost-cu12"} | {"xgboost": "3.4.1"}, (3, 12))
    (finding,) = [f for f in found if f.name == "CUDA packages"]
    assert finding.remedy == "Run: pip uninstall -y xgboost; pip install 'tabgpu[cu12]'"
    found = problems(CU13 | {"cupy-cuda12x": "14.2.0"}, (3, 12))
    assert [f.remedy for f in found] == ["Run: pip uninstall -y cupy-cuda12x cupy-cuda13x; pip install 'tabgpu[cu13]'"]


@pytest.mark.parametrize(
    ("name", "version", "severity", "wish"),
    [
        ("pandas", "2.3.3", "broken", "pandas>=3.0,<3.1"),
        ("pandas", "3.1.0", "broken", "pandas>=3.0,<3.1"),
        ("cupy-cuda12x", "14.1.0", "broken", "cupy-cuda12x>=14.0.1,<15,!=14.1.0"),
        ("cupy-cuda12x", "13.6.0", "broken", "cupy-cuda12x>=14.0.1,<15,!=14.1.0"),
        ("numba", "0.65.1", "warning", "numba>=0.60,<0.65"),
        ("numba-cuda", "0.31.0", "warning", "numba-cuda>=0.22.2,<0.31"),
        ("dask", "2026.9.0", "warning", "dask>=2026.7.1,<2026.7.2"),
        ("distributed", "2026.3.0", "warning", "distributed>=2026.7.1,<2026.7.2"),
        ("pyarrow", "18.1.0", "broken", "pyarrow>=19"),
        ("numpy", "1.26.4", "broken", "numpy>=2.0,<3"),
    ],
)
def test_pins(name: str, version: str, severity: str, wish: str) -> None:
    finding = only(problems(CU12 | {name: version}, (3, 12)))
    assert (finding.name, finding.severity) == (name, severity)
    assert finding.remedy == f"Run: pip install '{wish}'"


def test_dask_is_free_without_dask_cuda() -> None:
    alone = {n: v for n, v in CU12.items() if n not in ("dask-cuda", "rapids-dask-dependency")}
    assert problems(alone | {"dask": "2026.9.0"}, (3, 12)) == []


def test_python_is_too_old_for_gpus_alone() -> None:
    finding = only(problems(CU12, (3, 11)))
    assert (finding.name, finding.severity) == ("Python", "broken")
    assert problems(CPU, (3, 11)) == []


# NCCL, which several GPUs need


def test_nccl() -> None:
    finding = only(problems(CU12 | {"nvidia-nccl-cu13": "2.30.0"}, (3, 12)))
    assert (finding.name, finding.severity) == ("NCCL", "warning")
    assert finding.remedy == ("Run: pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13; pip install nvidia-nccl-cu12")
    other = {n: v for n, v in CU12.items() if n != "nvidia-nccl-cu12"} | {"nvidia-nccl-cu13": "2.30.0"}
    finding = only(problems(other, (3, 12)))
    assert finding.remedy == "Run: pip uninstall -y nvidia-nccl-cu13; pip install nvidia-nccl-cu12"


# the device


@pytest.mark.parametrize(
    ("build", "driver", "capability", "names", "remedy"),
    [
        ("cu12", "535.54.03", (7, 0), [], ""),
        ("cu13", "580.65", (9, 0), [], ""),
        ("cpu", "", None, [], ""),
        ("cu12", "525.60", (9, 0), ["driver"], "Update the driver"),
        ("cu13", "525.60", (9, 0), ["driver"], "Update the driver"),
        ("cu13", "570.1", (9, 0), ["driver"], "pip install 'tabgpu[cu12]'"),
        ("cu13", "580.1", (7, 0), ["compute capability"], "pip install 'tabgpu[cu12]'"),
        ("cu12", "580.1", (6, 1), ["compute capability"], "--set engine=cpu"),
        ("cu12", "?", (6, 1), ["driver", "compute capability"], ""),
    ],
)
def test_device(
    build: packages.Family, driver: str, capability: tuple[int, int] | None, names: list[str], remedy: str
) -> None:
    found = device_problems(build, driver, capability)
    assert [f.name for f in found] == names
    assert all(f.severity == "broken" and f.remedy for f in found)
    assert not found or remedy in found[0].remedy


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from(packages.NAMES), st.sampled_from(["26.10.0", "3.4.1", "2", "", "?"])),
    st.sampled_from([(3, 11), (3, 14)]),
)
def test_every_finding_has_its_remedy_and_the_broken_come_first(
    installed: dict[str, str], python: tuple[int, int]
) -> None:
    found = problems(installed, python)
    assert all(f.happened and f.expected and f.remedy for f in found)
    severities = [f.severity for f in found]
    assert severities == sorted(severities)
    assert set(severities) <= {"broken", "warning"}
