"""An option as a test of policies tells of it in a line."""

from __future__ import annotations

from collections.abc import Sequence

from router.core.interfaces import Option
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Candidate, Prediction

SHORT = {
    "cost": "cost_usd", "e2e": "e2e_s_mean", "miss": "p_miss", "sd": "quality_sd", "tokens": "output_tokens_mean",
    "tpot": "tpot_s", "ttft": "ttft_s_p50",
}  # fmt: skip


def option(
    name: str,
    model: str = "m",
    *,
    running: int = 0,
    first_token: int = 0,
    pending: int = 0,
    promised: Sequence[float] = (),
    slots: int | None = None,
    per_hour: float | None = None,
    profile: EngineProfile | None = None,
    **predicted: float | None,
) -> Option:
    """An instance with one model, and what is predicted of it, by SHORT names or those of `Prediction`."""
    candidate = Candidate(name, model, model)
    instance = Instance(
        name, "vllm", {model: candidate}, max_concurrency=slots, usd_per_hour=per_hour,
        in_flight=running, awaiting_first_token=first_token, pending_prefill_tokens=pending,
    )  # fmt: skip
    instance.promised_tpot_s = sorted(promised)
    if profile is not None:
        instance.profiles[model] = profile
    prediction = Prediction(**{SHORT.get(field, field): value for field, value in predicted.items()})  # type: ignore[arg-type]
    return Option(candidate, instance, prediction)
