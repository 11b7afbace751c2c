"""One run at a time on a scheduler: two that pin their workers to one another would wait for each other for ever.

The claim is a note on the scheduler, which is asked for by `Client.run_on_scheduler`. It names the client, and counts
only as long as that client is connected: whoever dies lets go of it.
"""

from __future__ import annotations

from typing import Any

_NOTE = "tabgpu_claim"


def claim(token: str, holder: str, client: str, dask_scheduler: Any = None) -> str | None:
    """Take the lock, on the scheduler; returns who holds it where it is held.

    Parameters
    ----------
    token : str
        Tells this claim from others, of the same client too.
    holder : str
        Who takes it, for messages.
    client : str
        The client's name on the scheduler.
    dask_scheduler : Scheduler
        Given by Dask.
    """
    held = getattr(dask_scheduler, _NOTE, None)
    if held is not None and held["client"] in dask_scheduler.clients and held["token"] != token:
        return str(held["holder"])
    setattr(dask_scheduler, _NOTE, {"token": token, "holder": holder, "client": client})
    return None


def let_go(token: str, dask_scheduler: Any = None) -> None:
    """Give the lock back, on the scheduler, where this claim holds it."""
    held = getattr(dask_scheduler, _NOTE, None)
    if held is not None and held["token"] == token:
        setattr(dask_scheduler, _NOTE, None)
