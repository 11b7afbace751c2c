"""The expression language of ``data.derive`` and ``data.filter``: read by a strict grammar, computed on whole arrays.

`expression` is what others use. `grammar` reads text into nodes, `values` says what a value is, and `logic`,
`comparisons`, `choices` and `numbers` hold the operations.
"""

from __future__ import annotations

from .expression import Expression, parse

__all__ = ["Expression", "parse"]
