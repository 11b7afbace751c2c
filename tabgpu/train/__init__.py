"""Training: the one `DataIter`, matrices, cuts, the round loop, predictions, metrics. XGBoost is imported here alone.

`iterator`, `matrix`, `cuts`, `refusals`, `booster` and `run` import XGBoost; the others do not, so that a plan costs no
such import. Two OpenMP pools that spin on busy cores cost tenfold, so idle threads of XGBoost's pool are
told to sleep; this has to stand in the environment before XGBoost is loaded, and the user's own setting wins.
"""

import os
from importlib import import_module
from importlib.util import find_spec

from .. import packages
from ..errors import ConfigError
from ..interrupts import deferred

os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def require_xgboost() -> None:
    """Import all that training needs, whole: an interrupt waits, since some of these imports would swallow it.

    Raises
    ------
    ConfigError
        Unless just one build of XGBoost is installed: two overwrite each other's files.
    """
    if find_spec("xgboost") is None:
        raise ConfigError(
            "The pipeline has a model, and XGBoost is not installed",
            "Expected one of its builds beside tabgpu",
            "Install one: pip install 'tabgpu[cpu]', or set model: null for features alone",
        )
    if conflict := packages.xgboost_conflict(packages.installed()):
        raise ConfigError(conflict.happened, conflict.expected, conflict.remedy)
    with deferred():
        import_module(".run", __name__)
