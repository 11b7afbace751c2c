"""Proof with a GPU: the laws, the memory formulas against measured peaks, and ratios; see `scripts/gpu-check`.

Each part is a process of its own with a time budget, so that a crash, a hang or a broken CUDA context ends that part
alone: `python -m gpu_check.laws`, `gpu_check.memory`, `gpu_check.ratios`, `gpu_check.whole`. It writes rows as it goes;
`python -m gpu_check` runs all of them and prints what they wrote as one table.
"""
