"""The report of a calibration: as an object for JSON, and as a table for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.calibrate.errors import TARGETS, Error, LevelErrors, error_of, level_errors
from benchmarks.calibrate.fit import Fitted
from benchmarks.calibrate.measured import Study
from benchmarks.calibrate.profile import CLIENT_CONSTANTS, STEP_CONSTANTS, as_dict

REPORT_KEY = "headway_calibration"
ENGINE_MODEL = "engine model"


@dataclass(frozen=True, slots=True)
class Result:
    """One engine: what was fitted, the errors of each level in order of load, and the errors of all requests
    of the levels held out, by metric. `ratios` are the simulated over measured values that they come from."""

    study: Study
    fitted: Fitted
    levels: tuple[LevelErrors, ...]
    held_out: dict[str, Error]
    ratios: Mapping[str, Sequence[float]]

    @property
    def missed(self) -> list[str]:
        """Metrics whose median error on the levels held out is above the target."""
        return [metric for metric, error in self.held_out.items() if error.median > TARGETS[metric]]

    def as_dict(self) -> dict[str, Any]:
        return {
            "engine": self.study.name,
            "fitted_levels": self.study.split.fit,
            "held_out_levels": self.study.split.test,
            "compared": "requests" if self.study.paired else "distributions",
            "notes": self.study.notes,
            **as_dict(self.fitted.constants),
            "loss": self.fitted.loss,
            "first_loss": self.fitted.first_loss,
            "limits_tried": [{**limits, "loss": loss} for limits, loss in self.fitted.losses],
            "evaluations": self.fitted.evaluations,
            "targets": dict(TARGETS),
            "held_out": {metric: asdict(error) for metric, error in self.held_out.items()},
            "missed": self.missed,
            "checks": {
                name: asdict(error) for name, each in self.study.checks.items() if (error := error_of(each))
            },
            "levels": [asdict(level) for level in self.levels],
        }


def result_of(study: Study, fitted: Fitted) -> Result:
    """The errors of every level under the fitted constants."""
    levels, held_out = [], {metric: list[float]() for metric in TARGETS}
    for name, level in study.levels.items():
        errors, raw = level_errors(study, level, fitted.constants)
        levels.append(errors)
        if name in study.split.test:
            for metric, values in raw.items():
                held_out[metric] += values
    totals = {metric: error for metric, values in held_out.items() if (error := error_of(values))}
    return Result(study, fitted, tuple(levels), totals, held_out)


def text(results: Sequence[Result]) -> str:
    """All results as lines for a person."""
    return "\n\n".join([*(_one(result) for result in results), *_groups_text(results)])


def groups(results: Sequence[Result]) -> dict[str, dict[str, Error]]:
    """The held-out E2E errors of engines that share a group: {group: {prediction: error}}. The predictions are the
    engine model and the checks of the studies."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in results:
        predictions = {ENGINE_MODEL: result.ratios["e2e"], **result.study.checks}
        for group in result.study.groups:
            for name, ratios in predictions.items():
                found.setdefault(group, {}).setdefault(name, []).extend(ratios)
    return {
        group: {name: error for name, ratios in each.items() if (error := error_of(ratios))}
        for group, each in found.items()
    }


def _groups_text(results: Sequence[Result]) -> list[str]:
    """The table of the groups, if there are any."""
    found = groups(results)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    if not names:
        return []
    lines = ["held out, E2E: median, mean and 90th percentile of the relative error, and their number"]
    for group, each in found.items():
        cells = (
            f"{name} {100 * error.median:.1f}% {100 * error.mean:.1f}% {100 * error.p90:.1f}% ({error.count})"
            for name in names
            if (error := each.get(name))
        )
        lines.append(f"  {group:<18} " + " | ".join(cells))
    return ["\n".join(lines)]


def _one(result: Result) -> str:
    study, constants = result.study, result.fitted.constants
    profile = constants.profile
    lines = [
        f"{study.name}: fitted on {', '.join(study.split.fit)}; held out {', '.join(study.split.test) or 'nothing'}",
        *(f"  note: {note}" for note in study.notes),
        "  " + ", ".join(f"{name} {getattr(profile, name):.3g}" for name in STEP_CONSTANTS),
        "  "
        + ", ".join(f"{name} {getattr(constants, name):.3g}" for name in CLIENT_CONSTANTS)
        + f"; max_batched_tokens {profile.max_batched_tokens}, max_seqs {profile.max_seqs}, "
        f"kv_capacity_tokens {profile.kv_capacity_tokens}, "
        f"chunked_prefill {_setting(profile.chunked_prefill)}",
        *_tried(result.fitted),
        f"  {'level':<18} {'set':<8} {'rate/s':>7} {'n':>5}"
        + "".join(f" | {metric.upper():>5} {'p90':>6} {'bias':>6}" for metric in TARGETS)
        + " | queue peak: measured, simulated",
    ]
    kinds = dict.fromkeys(study.split.fit, "fitted") | dict.fromkeys(study.split.test, "held out")
    for level in result.levels:
        kind = kinds.get(level.level, "-")
        lines.append(
            f"  {level.level:<18} {kind:<8} {level.rate_per_s:>7.3f} {level.requests:>5}"
            + "".join(f" | {_cells(level.errors.get(metric))}" for metric in TARGETS)
            + f" | {', '.join(map(str, level.queue_peak or '-'))}"
        )
    if result.held_out:
        lines.append(
            f"  {'all held out':<41}"
            + "".join(f" | {_cells(result.held_out.get(metric))}" for metric in TARGETS)
        )
        targets = ", ".join(f"{metric.upper()} {100 * TARGETS[metric]:.0f} %" for metric in TARGETS)
        missed = ", ".join(metric.upper() for metric in result.missed)
        lines.append(f"  targets (median): {targets}; " + (f"missed: {missed}" if missed else "all met"))
    return "\n".join(lines)


def _setting(value: int | None) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _tried(fitted: Fitted) -> list[str]:
    """What the limits cost that were not taken, where there was a choice."""
    names = sorted(
        name
        for name in {name for each, _ in fitted.losses for name in each}
        if len({each.get(name) for each, _ in fitted.losses}) > 1
    )
    return [
        f"  loss {loss:.4f} with " + ", ".join(f"{name} {_setting(each.get(name))}" for name in names)
        for each, loss in fitted.losses
        if names
    ]


def _cells(error: Error | None) -> str:
    if error is None:
        return f"{'-':>5} {'-':>6} {'-':>6}"
    return f"{100 * error.median:>4.1f}% {100 * error.p90:>5.1f}% {100 * error.bias:>+5.1f}%"
