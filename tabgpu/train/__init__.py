"""Training: the one `DataIter`, matrices, cuts, the round loop, predictions, metrics. XGBoost is imported here alone.

`iterator`, `matrix`, `cuts`, `refusals`, `booster` and `run` import XGBoost; the others do not, so that a plan costs no
such import. Two OpenMP pools that spin on busy cores cost tenfold, so idle threads of XGBoost's pool are
told to sleep; this has to stand in the environment before XGBoost is loaded, and the user's own setting wins.
"""

import os
import sys
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
    for finding in packages.problems(packages.installed(), (sys.version_info[0], sys.version_info[1])):
        if finding.name == "XGBoost" and "builds of XGBoost are installed" in finding.happened:
            raise ConfigError(finding.happened, finding.expected, finding.remedy)
    with deferred():
        import_module(".run", __name__)
