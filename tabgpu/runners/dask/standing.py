"""What workers can do that somebody else has started: asked before anything is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from distributed import Client

from ...config import Cluster
from ...errors import ResourceError, listing
from ...hardware import GpuFacts, HostFacts, Limit
from . import checks
from .cluster import TIMEOUT_S, reached, wait_for
from .workers import Workers


@dataclass(frozen=True)
class Standing:
    """Workers that stand.

    Parameters
    ----------
    facts : mapping of str to Facts
        What each says of itself, by address.
    """

    facts: Mapping[str, checks.Facts]

    def engine(self, wish: str) -> tuple[str, str]:
        """Name of the engine that all can work on, and the reason.

        Parameters
        ----------
        wish : {'auto', 'cpu', 'gpu'}
            As in the pipeline file.

        Raises
        ------
        ResourceError
            If ``gpu`` is asked for, and a worker cannot have it.
        """
        if wish == "cpu":
            return "cpu", "asked for"
        without = {address: one for address, one in self.facts.items() if one.without_gpu}
        if not without:
            name = next(gpu.name for one in self.facts.values() for gpu in one.gpus)
            return "gpu", f"asked for ({name} on the workers)" if wish == "gpu" else f"there is a {name} on each worker"
        happened, expected, remedy = next(iter(without.values())).without_gpu
        if wish == "gpu":
            raise ResourceError(
                f"engine is 'gpu', and {len(without)} of {len(self.facts)} workers cannot have it "
                f"({listing(without, 3)}): {happened}",
                expected,
                f"{remedy}, or set engine: auto in the pipeline file (--set engine=auto)",
            )
        return "cpu", f"on {len(without)} of {len(self.facts)} workers: {happened}"

    @property
    def host(self) -> HostFacts:
        """The machine of the worker that may take the least memory, as that worker sees it."""
        seen = []
        for one in self.facts.values():
            neighbours = sum(other.host == one.host for other in self.facts.values())
            limit = one.memory_limit or one.machine.smallest.n_bytes // neighbours
            source = "memory limit of the worker" if one.memory_limit else f"a share of {neighbours} of its machine"
            seen.append(replace(one.machine, limits=(*one.machine.limits, Limit(source, limit))))
        return min(seen, key=lambda machine: machine.smallest.n_bytes)

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """The GPU of each worker: the first that it sees, as CUDA has it."""
        return tuple(one.gpus[0] for one in self.facts.values() if one.gpus)


def look(cluster: Cluster | None, client: Client | None = None) -> Standing:
    """Ask the workers of a scheduler what they are.

    Raises
    ------
    ClusterError
        If there is no scheduler, or no worker in time.
    ConfigError
        If workers cannot answer, for want of tabgpu.
    """
    timeout_s = cluster.timeout if cluster is not None else TIMEOUT_S
    with reached(cluster, client) as there:
        wait_for(there, 1, timeout_s)
        return Standing(checks.gather(Workers(there, timeout_s), look_at_pools=False))
