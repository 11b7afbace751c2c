"""Training: the one `DataIter`, matrices, cuts, the round loop, predictions, metrics. XGBoost is imported here alone.

`iterator`, `matrix`, `cuts`, `refusals`, `booster` and `run` import XGBoost; the others do not, so that a plan costs no
such import. Two OpenMP pools that spin on busy cores cost tenfold, so idle threads of XGBoost's pool are
told to sleep; this has to stand in the environment before XGBoost is loaded, and the user's own setting wins.
"""

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from ..errors import ConfigError
from ..interrupts import deferred

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_DISTRIBUTIONS = ("xgboost", "xgboost-cpu", "xgboost-cu12", "xgboost-cu13")  # all of them own the module `xgboost`


def require_xgboost() -> None:
    """Import all that training needs, whole: an interrupt waits, since some of these imports would swallow it.

    Raises
    ------
    ConfigError
        Unless just one build of XGBoost is installed: two overwrite each other's files.
    """
    installed = [name for name in _DISTRIBUTIONS if _is_installed(name)]
    if find_spec("xgboost") is None:
        raise ConfigError(
            "The pipeline has a model, and XGBoost is not installed",
            "Expected one of its builds beside tabgpu",
            "Install one: pip install 'tabgpu[cpu]', or set model: null for features alone",
        )
    if len(installed) > 1:
        raise ConfigError(
            f"{len(installed)} builds of XGBoost are installed, each over the other: {', '.join(installed)}",
            "Expected just one of them",
            f"Remove all and install one: pip uninstall -y {' '.join(installed)} && pip install {installed[-1]}",
        )
    with deferred():
        import_module(".run", __name__)


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
