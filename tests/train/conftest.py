"""Idle threads of XGBoost sleep: the variable has to stand before a test module imports it."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
