"""Training: the one `DataIter`, matrices, cuts, the round loop, predictions, metrics. XGBoost is imported here alone.

`iterator`, `matrix`, `cuts` and `booster` import XGBoost; `params`, `metrics` and `terms` do not, so that a plan or a
score costs no such import. Two OpenMP pools that spin on busy cores cost tenfold, so idle threads of XGBoost's pool are
told to sleep; this has to stand in the environment before XGBoost is loaded, and the user's own setting wins.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
