"""``python -m tabgpu``: the command line."""

from .cli import main

main()
