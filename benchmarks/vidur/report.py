"""The figures of `python -m benchmarks.vidur` as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.vidur.runs import SIMULATORS, Measured

_QUANTILES = {"p50": 0.5, "p95": 0.95}


def text(measured: Sequence[Measured]) -> str:
    """Medians of the runs, their least and greatest simulation times, and what was simulated."""
    lines = []
    for each in measured:
        lines += [
            f"{each.requests} requests, {each.replicas} {'replica' if each.replicas == 1 else 'replicas'}",
            f"{'':10}{'simulation s':>14}{'least-most':>16}{'CPU s':>8}{'process s':>11}{'requests/s':>12}"
            f"{'TTFT p50':>10}{'p95':>8}{'E2E p50':>10}{'p95':>9}",
        ]
        for name in SIMULATORS:
            times = [run.simulation_s for run in each.runs[name]]
            simulation_s = each.median(name, "simulation_s")
            outcome = each.outcomes[name]
            lines.append(
                f"{name:10}{simulation_s:14.3f}{f'{min(times):.3f}-{max(times):.3f}':>16}"
                f"{each.median(name, 'cpu_s'):8.3f}{each.median(name, 'process_s'):11.2f}{each.requests / simulation_s:12,.0f}"
                f"{outcome.quantile('ttft_s', 0.5):10.3f}{outcome.quantile('ttft_s', 0.95):8.3f}"
                f"{outcome.quantile('e2e_s', 0.5):10.2f}{outcome.quantile('e2e_s', 0.95):9.2f}"
            )
        lines += [
            f"{'ratio':10}{each.ratio('simulation_s'):14.1f}{'':16}{each.ratio('cpu_s'):8.1f}{each.ratio('process_s'):11.1f}",
            "",
        ]
    return "\n".join(lines).rstrip()


def as_json(measured: Sequence[Measured], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings, every run, and quantiles of what was simulated."""
    return {
        "settings": settings,
        "measured": [
            {
                "replicas": each.replicas,
                "requests": each.requests,
                "ratio": {of: each.ratio(of) for of in ("simulation_s", "cpu_s", "process_s")},
                **{
                    name: {
                        "requests_per_s": each.requests / each.median(name, "simulation_s"),
                        "runs": [asdict(run) for run in each.runs[name]],
                        **{
                            of: {
                                label: each.outcomes[name].quantile(of, share)
                                for label, share in _QUANTILES.items()
                            }
                            for of in ("ttft_s", "e2e_s")
                        },
                    }
                    for name in SIMULATORS
                },
            }
            for each in measured
        ],
    }
