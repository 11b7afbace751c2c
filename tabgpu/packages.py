"""Which packages are installed, and whether they go together: facts from their metadata, judged by pure functions.

Nothing is imported for it, so that a broken installation can be described by a program that would crash on it. The
choice of an engine and ``tabgpu doctor`` ask the same questions here; what the device and its driver have to say to the
packages is asked by `device_problems`, with plain numbers. What only an import can tell is left to the engine.

XGBoost has four names on PyPI: ``xgboost-cpu``, ``xgboost-cu12`` and ``xgboost`` each own the module ``xgboost``, and
``xgboost-cu13`` holds nothing but the wish for ``xgboost``, which is the CUDA 13 build since 3.4 and was the CUDA 12
build before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

Severity = Literal["broken", "warning", "ok"]
Family = Literal["cpu", "cu12", "cu13"]

RELEASE = "26.10"  # of RAPIDS: the one that tabgpu is tested with, and that the extras name
_RAPIDS = ("cudf", "pylibcudf", "libcudf", "rmm", "librmm", "dask-cudf", "cuml", "libcuml")  # one wheel for each CUDA
_SHARED = ("dask-cuda", "rapids-dask-dependency")  # one wheel for both
_XGBOOST = ("xgboost", "xgboost-cpu", "xgboost-cu12")  # each owns the module
_CUPY = {"cupy-cuda12x": "cu12", "cupy-cuda13x": "cu13"}
_NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
_OTHERS = ("numpy", "pandas", "pyarrow", "dask", "distributed", "numba", "numba-cuda", "nvidia-ml-py", "nvtx", "psutil")

# In the order in which they are shown. A name without a suffix is how conda calls it.
NAMES = (
    *("tabgpu", *_XGBOOST, "xgboost-cu13"),
    *(f"{name}{suffix}" for name in _RAPIDS for suffix in ("", "-cu12", "-cu13")),
    *(*_SHARED, "cupy", *_CUPY, *_NCCL, *_OTHERS),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, in the three sentences of every message of tabgpu.

    Parameters
    ----------
    name : str
        What it is about, in a word or two, as "XGBoost" or "memory lock".
    severity : {'broken', 'warning', 'ok'}
        Whether work fails, may fail or be slow, or is not affected.
    happened, expected, remedy : str
        What was found; what it should be; what to do. The latter two are empty where all is well.
    """

    name: str
    severity: Severity
    happened: str
    expected: str = ""
    remedy: str = ""


class Requirement(NamedTuple):
    """Driver branch and compute capability that the wheels of one CUDA generation need."""

    driver: int
    capability: tuple[int, int]


REQUIREMENTS: Mapping[Family, Requirement] = {"cu12": Requirement(535, (7, 0)), "cu13": Requirement(580, (7, 5))}


class Pin(NamedTuple):
    """Versions of one package that RAPIDS 26.10 works with: from `low` on, before `below`, but not `without`."""

    name: str
    low: str
    below: str
    severity: Severity
    without: str = ""


# What the metadata of cudf, dask-cudf and rapids-dask-dependency 26.10 require
_PINS = (
    Pin("pandas", "3.0", "3.1", "broken"),
    Pin("cupy", "14.0.1", "15", "broken", without="14.1.0"),
    Pin("numpy", "2.0", "3", "broken"),
    Pin("pyarrow", "19", "", "broken"),
    Pin("numba", "0.60", "0.65", "warning"),  # compiles user functions and rolling windows, which no step uses
    Pin("numba-cuda", "0.22.2", "0.31", "warning"),
    Pin("dask", "2026.7.1", "2026.7.2", "warning"),  # matters on a cluster alone
    Pin("distributed", "2026.7.1", "2026.7.2", "warning"),
)


def installed() -> dict[str, str]:
    """Versions of the installed distributions among `NAMES`, without importing them, in the order of `NAMES`."""
    found = {}
    for name in NAMES:
        try:
            number = version(name)
        except (PackageNotFoundError, KeyError):  # KeyError: a folder of metadata that lost its file
            continue
        if number:
            found[name] = number
    return found


def family(installed: Mapping[str, str]) -> Family | None:
    """CUDA generation of the RAPIDS wheels; None where there are none, or where their names do not tell it (conda).

    Examples
    --------
    >>> family({"cudf-cu12": "26.10.2", "xgboost-cpu": "3.4.1"})
    'cu12'
    """
    for suffix in REQUIREMENTS:
        if any(f"{name}-{suffix}" in installed for name in ("cudf", "rmm")):
            return suffix
    return None


def xgboost_build(installed: Mapping[str, str]) -> Family | None:
    """Which XGBoost the names say is installed; None for none, or for several of which one overwrote the others.

    Conda calls every build ``xgboost``: what is really there is known from ``xgboost.build_info()`` alone.

    Examples
    --------
    >>> xgboost_build({"xgboost": "3.4.1"}), xgboost_build({"xgboost": "3.2.0"})
    ('cu13', 'cu12')
    """
    names = [name for name in _XGBOOST if name in installed]
    if len(names) != 1:
        return None
    if names == ["xgboost-cpu"] or sys.platform == "darwin":
        return "cpu"
    return "cu12" if names == ["xgboost-cu12"] or numbers(installed["xgboost"]) < (3, 4) else "cu13"


def missing_for_gpu(installed: Mapping[str, str]) -> list[str]:
    """What the GPU engine still needs, in plain words; empty where all is there.

    Examples
    --------
    >>> missing_for_gpu({"cudf-cu12": "26.10.2", "rmm-cu12": "26.10.0", "xgboost-cpu": "3.4.1"})
    ['cupy', 'nvidia-ml-py', 'XGBoost with CUDA']
    """
    stems = {_stem(name) for name in installed}
    missing = [name for name in ("cudf", "rmm", "cupy", "nvidia-ml-py") if name not in stems]
    return missing if xgboost_build(installed) in REQUIREMENTS else [*missing, "XGBoost with CUDA"]


def install_command(build: Family) -> str:
    """The command that installs what tabgpu needs for one build.

    Examples
    --------
    >>> install_command("cu12")
    "pip install 'tabgpu[cu12]'"
    """
    return f"pip install 'tabgpu[{build}]'"


def problems(installed: Mapping[str, str], python: tuple[int, int]) -> list[Finding]:
    """Judge installed packages by their versions alone.

    Parameters
    ----------
    installed : mapping of str to str
        Versions by name of distribution, as `installed` returns them.
    python : tuple of int
        Version of Python, as ``sys.version_info[:2]``.

    Returns
    -------
    list of Finding
        Problems alone, the broken first. Broken is what keeps an engine from starting, or makes it give wrong numbers;
        packages for the GPU are looked at only where cuDF or RMM is installed.

    Examples
    --------
    >>> problems({"xgboost-cpu": "3.4.1"}, (3, 12))
    []
    >>> problems({"xgboost-cpu": "3.4.1", "xgboost": "3.4.1"}, (3, 12))[0].remedy
    "Run: pip uninstall -y xgboost xgboost-cpu; pip install 'tabgpu[cpu]'"
    """
    found = list(_xgboost_problems(installed))
    if _rapids(installed):
        for judge in (_missing, _releases, _generations, _pins):
            found += judge(installed)
        found += _python_problems(python)
    found += _nccl_problems(installed)
    return sorted(found, key=lambda finding: finding.severity != "broken")


def xgboost_conflict(installed: Mapping[str, str]) -> Finding | None:
    """Several builds of XGBoost, of which one has overwritten the others: no engine can work then.

    Examples
    --------
    >>> xgboost_conflict({"xgboost-cpu": "3.4.1"}) is None
    True
    """
    names = [name for name in _XGBOOST if name in installed]
    if len(names) < 2:
        return None
    return _broken(
        "XGBoost",
        f"{len(names)} builds of XGBoost are installed: {_listed(names, installed)}; they overwrite one another",
        "Expected exactly one",
        f"Run: {_exchange(_with_wish(names, installed), family(installed) or 'cpu')}",
    )


def device_problems(build: Family, driver: str, capability: tuple[int, int] | None) -> list[Finding]:
    """Judge one device and its driver for the packages of one build.

    Parameters
    ----------
    build : {'cu12', 'cu13', 'cpu'}
        What is installed, as `family` says.
    driver : str
        Version of the driver, as "550.54.15"; empty where it is not known.
    capability : tuple of int, optional
        Compute capability, as (9, 0).

    Examples
    --------
    >>> [f.name for f in device_problems("cu13", "550.54.15", (7, 0))]
    ['driver', 'compute capability']
    """
    needed = REQUIREMENTS.get(build)
    if needed is None:
        return []
    found, other = [], "use the packages for CUDA 12: " + install_command("cu12")
    if driver and numbers(driver)[:1] < (needed.driver,):
        what = f"The NVIDIA driver is {driver}"
        expected = f"The packages for CUDA {build[2:]} need {needed.driver} or newer"
        or_other = f", or {other}" if numbers(driver)[:1] >= (REQUIREMENTS["cu12"].driver,) else ""
        found.append(_broken("driver", what, expected, f"Update the driver{or_other}"))
    if capability is not None and capability < needed.capability:
        what = f"The GPU has compute capability {capability[0]}.{capability[1]}"
        expected = f"The packages for CUDA {build[2:]} need {needed.capability[0]}.{needed.capability[1]} or higher"
        remedy = (
            other.capitalize() if capability >= REQUIREMENTS["cu12"].capability else "Use the CPU: --set engine=cpu"
        )
        found.append(_broken("compute capability", what, expected, remedy))
    return found


def numbers(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version, for comparison.

    Examples
    --------
    >>> numbers("26.10.00a17"), numbers("3.4.1"), numbers("?")
    ((26, 10, 0), (3, 4, 1), ())
    """
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(word) for word in match[0].split(".")) if match else ()


def _broken(name: str, happened: str, expected: str, remedy: str) -> Finding:
    return Finding(name, "broken", happened, expected, remedy)


def _stem(name: str) -> str:
    """The name without what tells CUDA 12 from 13."""
    return re.sub(r"-(cu1[23]|cuda1[23]x)$", "", name)


def _release(number: str) -> str:
    return ".".join(f"{n:02d}" for n in numbers(number)[:2])


def _rapids(installed: Mapping[str, str]) -> bool:
    return any(_stem(name) in ("cudf", "rmm") for name in installed)


def _xgboost_problems(installed: Mapping[str, str]) -> Iterator[Finding]:
    names = [name for name in _XGBOOST if name in installed]
    if not names:
        remedy = f"Run: {install_command(family(installed) or 'cpu')}"
        yield _broken("XGBoost", "XGBoost is not installed", "Expected one of its builds", remedy)
    elif conflict := xgboost_conflict(installed):
        yield conflict
    elif _rapids(installed):
        yield from _xgboost_beside_rapids(names[0], installed)


def _xgboost_beside_rapids(name: str, installed: Mapping[str, str]) -> Iterator[Finding]:
    wanted, number = family(installed), installed[name]
    remedy = f"Run: {_exchange(_with_wish([name], installed), wanted or 'cu12')}"
    if name == "xgboost-cpu":
        yield _broken(
            "XGBoost",
            f"RAPIDS is installed beside {_listed([name], installed)}, which cannot use a GPU",
            "Expected the build for the same CUDA as RAPIDS",
            remedy,
        )
    elif numbers(number) < (3, 3):
        yield _broken("XGBoost", f"XGBoost is {number}", f"cuDF {RELEASE} breaks XGBoost before 3.3", remedy)


def _missing(installed: Mapping[str, str]) -> Iterator[Finding]:
    missing = [name for name in missing_for_gpu(installed) if not name.startswith("XGBoost")]  # judged above
    if missing:
        yield _broken(
            "RAPIDS",
            f"RAPIDS is there in part: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "Expected cudf, rmm, cupy and nvidia-ml-py",
            f"Run: {install_command(family(installed) or 'cu12')}",
        )


def _releases(installed: Mapping[str, str]) -> Iterator[Finding]:
    by_release: dict[str, list[str]] = {}
    for name in (name for name in installed if _stem(name) in (*_RAPIDS, *_SHARED)):
        by_release.setdefault(_release(installed[name]), []).append(name)
    remedy = f"Run: pip install --upgrade 'tabgpu[{family(installed) or 'cu12'}]'"
    if len(by_release) > 1:
        groups = "; ".join(f"{', '.join(found)} {release}" for release, found in sorted(by_release.items()))
        yield _broken("RAPIDS", f"RAPIDS packages are of {len(by_release)} releases: {groups}", "Expected one", remedy)
    elif RELEASE not in by_release:
        yield Finding(
            "RAPIDS", "warning", f"RAPIDS is {next(iter(by_release))}", f"tabgpu is tested with {RELEASE}", remedy
        )


def _generations(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Packages for CUDA 12 beside packages for CUDA 13; NCCL is judged by itself."""
    names: dict[Family, list[str]] = {suffix: [] for suffix in REQUIREMENTS}
    for name in installed:
        for suffix, found in names.items():
            if name not in (*_NCCL, *_XGBOOST) and (name.endswith(f"-{suffix}") or _CUPY.get(name) == suffix):
                found.append(name)
    build = xgboost_build(installed)
    if build in names and family(installed) is not None:  # under conda the name does not tell the build
        names[build] += [name for name in _XGBOOST if name in installed]
    if all(names.values()):
        keep = family(installed) or "cu12"
        stems = {_stem(name) for suffix, found in names.items() if suffix != keep for name in found}
        # both go where both own the same files: removing one would leave the other with holes
        remove = [name for found in names.values() for name in found if _stem(name) in stems]
        yield _broken(
            "CUDA packages",
            f"Packages for CUDA 12 ({_listed(names['cu12'], installed)}) are beside packages for CUDA 13 "
            f"({_listed(names['cu13'], installed)})",
            "Expected those of one CUDA alone",
            f"Run: {_exchange(_with_wish(remove, installed), keep)}",
        )


def _pins(installed: Mapping[str, str]) -> Iterator[Finding]:
    release = next((v for n, v in installed.items() if n.startswith(("cudf", "rmm"))), RELEASE)
    if _release(release) != RELEASE:
        return  # another release has pins of its own
    for pin in _PINS:
        for name in (pin.name, *_CUPY) if pin.name == "cupy" else (pin.name,):
            number = installed.get(name)
            if number is None or (pin.name in ("dask", "distributed") and "dask-cuda" not in installed):
                continue
            too_new = pin.below and numbers(number) >= numbers(pin.below)
            if numbers(number) < numbers(pin.low) or too_new or number == pin.without:
                bounds = ((">=", pin.low), ("<", pin.below), ("!=", pin.without))
                wish = name + ",".join(sign + bound for sign, bound in bounds if bound)
                needs = f"RAPIDS {RELEASE} needs {wish}"
                yield Finding(name, pin.severity, f"{name} is {number}", needs, f"Run: pip install '{wish}'")


def _python_problems(python: tuple[int, int]) -> Iterator[Finding]:
    if python < (3, 12):
        yield _broken(
            "Python",
            f"Packages for the GPU are installed on Python {python[0]}.{python[1]}",
            "XGBoost goes with this cuDF from 3.3 on, which needs Python 3.12",
            "Make an environment with Python 3.12 or newer, or use the CPU: --set engine=cpu",
        )


def _nccl_problems(installed: Mapping[str, str]) -> Iterator[Finding]:
    """NCCL is loaded when several GPUs train together, and then alone: one GPU works without."""
    there = [name for name in _NCCL if name in installed]
    build = xgboost_build(installed)
    needed = f"nvidia-nccl-{build}"
    if len(there) > 1:
        keep = needed if needed in there else there[0]
        happened = f"Two builds of NCCL are installed: {_listed(there, installed)}; one overwrote the other's files"
        expected = f"Expected {keep} alone: training on several GPUs may crash or hang"
    elif there and build in REQUIREMENTS and needed not in there:
        keep = needed
        happened = f"{there[0]} is installed"
        expected = f"XGBoost for CUDA {str(build)[2:]} loads {needed} when several GPUs train together"
    else:
        return
    yield Finding("NCCL", "warning", happened, expected, f"Run: pip uninstall -y {' '.join(there)}; pip install {keep}")


def _with_wish(names: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """`names`, and ``xgboost-cu13`` where ``xgboost`` goes, which it would bring back."""
    found = list(dict.fromkeys(names))
    return [*found, "xgboost-cu13"] if "xgboost" in found and "xgboost-cu13" in installed else found


def _exchange(remove: Iterable[str], build: Family) -> str:
    return f"pip uninstall -y {' '.join(remove)}; {install_command(build)}"


def _listed(names: Iterable[str], installed: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {installed[name]}" for name in names)
