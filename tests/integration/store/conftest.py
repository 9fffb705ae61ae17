"""Records to store."""

from __future__ import annotations

import time
from typing import Any

import pytest

from router.core.types import Candidate, Considered, Decision, EndedHow, Prediction
from router.store.records import AttemptRecord, RequestRecord
from tests.records import MakeRecord


@pytest.fixture
def make_record() -> MakeRecord:
    """A request with one attempt and one decision over three candidates."""

    def make(number: int = 0, **fields: Any) -> RequestRecord:
        received_at = fields.pop("received_at", time.time())
        considered = tuple(
            Considered(
                Candidate(f"gpu-{i}", "llama", "up"),
                Prediction(ttft_s_p50=0.1 * i, cost_usd=0.001),
                float(i),
                None if i == 0 else "a higher score",
            )
            for i in range(3)
        )
        record = RequestRecord(
            id=f"req_{number:08d}",
            received_at=received_at,
            api="chat.completions",
            key_name="team-a",
            policy="latency",
            model_requested="auto",
            model="llama",
            instance="gpu-0",
            attempts=1,
            prompt_tokens=120,
            output_tokens=80,
            finish_reason="stop",
            decoded=True,
            hedged=False,
            ttft_s=0.125,
            e2e_s=2.5,
            cost_usd=0.0005,
            slo_ttft_s=0.5,
            slo_met=True,
            arrived_at=12.0,
            attempt_records=[
                AttemptRecord(
                    1, "gpu-0", "llama", received_at, received_at + 0.1, None, 80, 1e-4, EndedHow.OK
                )
            ],
            decisions=[
                Decision("latency", 12.5, 0, considered, 1.0, tuple((i, *[None] * 7) for i in range(3)))
            ],
            prefix=(1, 2, 3),
        )
        for name, value in fields.items():
            setattr(record, name, value)
        return record

    return make
