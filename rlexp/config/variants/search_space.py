"""Space: what a sweep varies in one experiment, its points, and the experiment at each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from random import Random
from typing import Any

from rlexp.config.keys.load_options import LoadOptions
from rlexp.config.keys.search import SearchConfig
from rlexp.config.rllib_compat.releases import Age
from rlexp.config.space.domains import Listed, Normal
from rlexp.config.space.grid import SEARCH, Axis, replaced
from rlexp.config.translation import node_of
from rlexp.config.variants.variant import Variant, variant_of
from rlexp.config.yaml.nodes import Finding, Node

Point = Mapping[str, Any]
"""A value for each axis, by the axis's key."""

_KEEP_THE_NETWORK = (
    *("env", "run", "config.env_config", "config.model", "config.hiddens", "config.dueling", "config.noisy"),
    *("config.num_atoms", "config.observation_filter", "config.preprocessor_pref", "config.optimizer"),
    *("config.num_workers", "config.num_gpus", "config.num_cpus_for_driver", "config.num_cpus_per_worker"),
)
"""Keys that pbt cannot change: a trial that copies another's weights keeps its own network and processes."""


@dataclass(frozen=True)
class Space:
    """The axes of one experiment, all of whose variants are right."""

    name: str
    run: str
    node: Node
    """The experiment, in the spelling of its file where that is older, with its axes."""
    axes: tuple[Axis, ...]
    located: tuple[Axis, ...]
    """The same axes, at their current keys."""
    age: Age | None
    """The releases of RLlib that its spelling belongs to, if any."""
    options: LoadOptions

    @property
    def keys(self) -> tuple[str, ...]:
        """The axes' keys, as trials show them."""
        return tuple(axis.key for axis in self.located)

    def searcher(self, search: SearchConfig) -> str:
        """Return the searcher, also where the section leaves it open."""
        return search.searcher or ("grid" if all(axis.is_grid for axis in self.axes) and self.axes else "random")

    def number_of_configurations(self, search: SearchConfig) -> int:
        """Return how many configurations a sweep tries at most."""
        grid = prod(len(axis.choices) for axis in self.axes if axis.is_grid)
        return grid * (1 if self.searcher(search) == "grid" else search.num_samples)

    def findings(self, search: SearchConfig) -> Iterator[Finding]:
        """Yield what a section's searcher or scheduler cannot do with these axes."""
        searcher = self.searcher(search)
        if not self.axes:
            hint = "write a value as {loguniform: [1e-4, 1e-2]} or {grid_search: [...]}, or use --sweep lr=1e-3,1e-4"
            yield Finding(self._section.key_place, f"{self.name} has nothing to search", hint)
        for axis, located in zip(self.axes, self.located, strict=True):
            place = axis.choices[0].place
            if searcher == "grid" and not axis.is_grid:
                sampler = next(iter(axis.domain.data()))
                message = f"{axis.key}: {sampler} cannot be used with search.searcher: grid"
                yield Finding(place, message, "write grid_search: [...], or searcher: random")
            if searcher == "optuna" and axis.is_grid:
                message = f"{axis.key}: grid_search cannot be used with search.searcher: optuna"
                yield Finding(place, message, "write choice: [...]")
            if searcher == "optuna" and isinstance(axis.domain, Normal):
                message = f"{axis.key}: randn cannot be used with search.searcher: optuna"
                yield Finding(place, message, "write uniform: [low, high]")
            set_by_it = [".".join(map(str, path)) for path in located.makes or (located.path,)]
            fixed = tuple(f"{key}." for key in _KEEP_THE_NETWORK)
            if search.scheduler_options.COPIES_TRIALS and any(f"{path}.".startswith(fixed) for path in set_by_it):
                why = "whose trials copy each other's weights"
                message = f"{axis.key} cannot be searched with scheduler: {search.scheduler}, {why}"
                yield Finding(place, message, "use another scheduler, or write one value")

    def grid(self) -> list[Point]:
        """Return the points of the grid axes alone, the last axis fastest; one empty point where there are none."""
        axes = [axis for axis in zip(self.axes, self.keys, strict=True) if axis[0].is_grid]
        values = [axis.domain.values for axis, _ in axes if isinstance(axis.domain, Listed)]
        return [dict(zip([key for _, key in axes], point, strict=True)) for point in product(*values)]

    def drawn(self, rng: Random, grid_point: Point) -> Point:
        """Return a point with its grid axes at ``grid_point`` and a draw for every other one."""
        return {
            key: grid_point[key] if key in grid_point else axis.domain.draw(rng)
            for axis, key in zip(self.axes, self.keys, strict=True)
        }

    def variant(self, point: Point) -> Variant:
        """Return the experiment at a point, without its ``search`` section, or what is wrong with it there."""
        node = self.node.without(SEARCH)
        for axis, key in zip(self.axes, self.keys, strict=True):
            node = replaced(node, axis.path, node_of(point[key], axis.choices[0]))
        return variant_of(self.name, node, self.run, self.age, self.options)

    @property
    def _section(self) -> Node:
        return self.node.child(SEARCH) or self.node
