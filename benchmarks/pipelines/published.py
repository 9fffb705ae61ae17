"""Helix's published tables (`helix/` of the project's data): machines, clusters, placements and traces."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from policies.placement.node_throughput import NodeThroughput
from policies.placement.pipeline import (
    SINK,
    SOURCE,
    LayeredModel,
    LayerLimits,
    LayerPlacement,
    LayerTime,
    MachineCluster,
    MachineKind,
    NodeLink,
)

_ENDS = {"source": SOURCE, "sink": SINK}
_MILLI = 0.001
#: The metric of `Published.expected` that is a throughput.
THROUGHPUT = "decode_throughput_tokens_per_s"
#: Layers times tokens/s at which the iteration of a node's throughput starts.
_FIRST_GUESS = {
    "llama30b": {"A100": 48.0, "V100": 25.0, "L4": 9.0, "L4x2": 15.0, "T4": 8.0, "T4x2": 15.0, "T4x4": 23.0},
    "llama70b": {
        "A100": 80.0,
        "V100": 40.0,
        "L4": 20.0,
        "L4x2": 30.0,
        "T4": 12.5,
        "T4x2": 20.0,
        "T4x4": 30.0,
    },
}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _node(name: str | int) -> int:
    return _ENDS[name] if name in _ENDS else int(name)


@dataclass(frozen=True)
class PublishedModel:
    """A model with the machines as they run it."""

    model: LayeredModel
    machines: Mapping[str, MachineKind]
    typical_layers: Mapping[str, int]

    def throughput(self, counts: Mapping[str, int]) -> NodeThroughput:
        return NodeThroughput(
            self.machines, counts, self.typical_layers, _FIRST_GUESS[self.model.name], self.model.layers
        )


class Published:
    """The tables in a folder. OSError or ValueError where they are not there or do not fit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def models(self) -> dict[str, PublishedModel]:
        about = json.loads((self.folder / "models.json").read_text())
        return {name: self._model(name, facts) for name, facts in about.items()}

    def _model(self, name: str, facts: Mapping[str, Any]) -> PublishedModel:
        times: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row in _rows(self.folder / "layer_profile.csv"):
            if row["model"] == name:
                point = int(row["batch_tokens"]), float(row["layer_time_ms"]) * _MILLI
                times.setdefault((row["machine"], row["phase"]), []).append(point)
        limits: dict[str, dict[int, LayerLimits]] = {}
        for row in _rows(self.folder / "machine_limits.csv"):
            if row["model"] == name:
                limits.setdefault(row["machine"], {})[int(row["num_layers"])] = LayerLimits(
                    int(row["kv_capacity_token_layers"]),
                    int(row["prompt_max_requests"]),
                    int(row["prompt_max_tokens"]),
                    int(row["decode_max_requests"]),
                    int(row["decode_max_context_tokens"]),
                )
        machines = {
            row["machine"]: MachineKind(
                row["machine"],
                float(row["inbound_nic_bytes_per_s"]),
                float(row["disk_bytes_per_s"]),
                _layer_time(times[row["machine"], "prompt"]),
                _layer_time(times[row["machine"], "decode"]),
                tuple(held for _, held in sorted(limits[row["machine"]].items())),
            )
            for row in _rows(self.folder / "clusters" / "machine_hardware.csv")
            if row["machine"] in limits
        }
        model = LayeredModel(
            name,
            facts["num_layers"],
            facts["token_bytes"],
            facts["activation_bytes_per_token"],
            facts["param_bytes_per_layer"],
        )
        return PublishedModel(model, machines, facts["het42"]["typical_layers"])

    def cluster(self, name: str, model: str) -> MachineCluster:
        """A cluster of `clusters/`, e.g. `single24`, with its machines as they run the model."""
        machines = self.models[model].machines
        return MachineCluster(
            {
                int(row["node"]): machines[row["machine"]]
                for row in _rows(self.folder / "clusters" / f"{name}_nodes.csv")
            },
            {
                (_node(row["a"]), _node(row["b"])): NodeLink(
                    float(row["bandwidth_bytes_per_s"]), float(row["latency_s"])
                )
                for row in _rows(self.folder / "clusters" / f"{name}_links.csv")
            },
        )

    @cached_property
    def _placements(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "placements.json").read_text()))

    def placed(self, name: str, model: str) -> tuple[MachineCluster, LayerPlacement]:
        """A shipped placement, with the machines that it uses. Its links are those of its simulator file."""
        facts = self._placements[name]
        machines = self.models[model].machines
        nodes = facts["nodes"]
        ranges = {node["node"]: range(*facts["layers_per_node"][str(node["node"])]) for node in nodes}
        links = {
            (_node(a), _node(b)): NodeLink(bandwidth, latency) for a, b, bandwidth, latency in facts["links"]
        }
        kv = {node["node"]: node["kv_capacity_token_layers"] for node in nodes}
        cluster = MachineCluster({node["node"]: machines[node["machine"]] for node in nodes}, links)
        return cluster, LayerPlacement(ranges, tuple(links), kv)

    def ranges(self, name: str) -> dict[int, range]:
        """The layers of each node in a shipped placement."""
        held = self._placements[name]["layers_per_node"]
        return {int(node): range(*layers) for node, layers in held.items() if layers}

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """Prompt and answer tokens of the Azure conversation trace."""
        path = self.folder / "traces" / "azure_conv_lengths.csv"
        return [(int(row["input_tokens"]), int(row["output_tokens"])) for row in _rows(path)]

    @cached_property
    def arrivals_per_3_s(self) -> list[int]:
        return [
            int(row["arrivals"]) for row in _rows(self.folder / "traces" / "azure_conv_arrivals_per_3s.csv")
        ]

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        """What each published simulation command ran."""
        return list(json.loads((self.folder / "simulation_runs.json").read_text()))

    @cached_property
    def expected(self) -> dict[tuple[str, str], dict[str, str]]:
        """The published figures of each simulation command by its section and name: figures by metric, as they are
        written."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for row in _rows(self.folder / "expected_results.csv"):
            if row["kind"] == "simulation":
                found.setdefault((row["section"], row["command"]), {})[row["metric"]] = row["value"]
        return found


def _layer_time(points: list[tuple[int, float]]) -> LayerTime:
    points.sort()
    return LayerTime(tuple(size for size, _ in points), tuple(time for _, time in points))
