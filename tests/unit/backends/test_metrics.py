"""Reading load out of engines' Prometheus text."""

from __future__ import annotations

import pytest

from backends.metrics import load_report
from router.core.types import LoadReport


def test_vllm() -> None:
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{engine="0",model_name="a b}c"} 3.0',
        'vllm:num_requests_running{engine="1",model_name="a b}c"} 4.0',
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0',
        'vllm:num_requests_waiting{engine="1",model_name="m"} 0.0',
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.25',
        'vllm:kv_cache_usage_perc{engine="1"} 0.75',
        'vllm:cache_config_info{block_size="16",engine="0",num_cpu_blocks="None",num_gpu_blocks="100"} 1.0',
        'vllm:cache_config_info{block_size="16",engine="1",num_cpu_blocks="None",num_gpu_blocks="100"} 1.0',
    ]
    assert load_report("\n".join(lines).encode() + b"\n") == LoadReport(
        running=7, waiting=2, kv_usage=0.5, kv_capacity_tokens=3200
    )


def test_older_names() -> None:
    report = load_report(b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n")
    assert (report.running, report.kv_usage) == (1, 0.5)


def test_llama_server() -> None:
    report = load_report(b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n")
    assert (report.running, report.waiting) == (2, 5)


@pytest.mark.parametrize("labels", [b"", b'{engine="0"}', b'{model="a}b, \\"c\\" {"}'])
@pytest.mark.parametrize("rest", [b"", b" 1395066363000", b' # {trace_id="a"} 0.67 1520879607.789'])
def test_what_stands_around_a_value(labels: bytes, rest: bytes) -> None:
    assert load_report(b"vllm:num_requests_running%b 5%b\n" % (labels, rest)).running == 5


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>no</html>",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running x\n",
        b"vllm:num_requests_running NaN\n",
    ],
)
def test_absent_is_unknown(text: bytes) -> None:
    assert load_report(text) == LoadReport()
