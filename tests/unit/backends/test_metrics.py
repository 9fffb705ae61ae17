"""Reading load out of engines' Prometheus text."""

from __future__ import annotations

import pytest

from backends.metrics import MetricsReader
from router.core.types import LoadReport


def vllm(itl_s: float, tokens: int, hits: int, queries: int) -> bytes:
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
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}',
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}',
        'vllm:prefix_cache_hits_created{engine="0"} 1.79e+09',
        'vllm:num_preemptions_total{engine="0"} 1.0',
        'vllm:num_preemptions_total{engine="1"} 2.0',
        'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01"} 4.0',
        f'vllm:inter_token_latency_seconds_sum{{engine="0"}} {itl_s}',
        f'vllm:inter_token_latency_seconds_count{{engine="0"}} {tokens}',
        'vllm:cache_config_info{block_size="16",engine="0",num_cpu_blocks="None",num_gpu_blocks="100"} 1.0',
        'vllm:cache_config_info{block_size="16",engine="1",num_cpu_blocks="None",num_gpu_blocks="100"} 1.0',
    ]
    return "\n".join(lines).encode() + b"\n"


def test_vllm() -> None:
    report = MetricsReader().read(vllm(2.0, 100, 30, 60))
    assert report == LoadReport(
        running=7,
        waiting=2,
        kv_usage=0.5,
        prefix_hit_rate=0.5,
        itl_avg_s=0.02,
        preemptions_total=3,
        kv_capacity_tokens=3200,
    )


def test_rates_are_taken_between_scrapes() -> None:
    reader = MetricsReader()
    reader.read(vllm(2.0, 100, 30, 60))
    report = reader.read(vllm(2.5, 110, 40, 70))
    assert report.itl_avg_s == pytest.approx(0.05)
    assert report.prefix_hit_rate == pytest.approx(1.0)
    assert reader.read(vllm(2.5, 110, 40, 70)).itl_avg_s == pytest.approx(0.05)  # nothing new
    restarted = reader.read(vllm(0.3, 10, 0, 5))
    assert restarted.itl_avg_s == pytest.approx(0.03)
    assert restarted.prefix_hit_rate == 0.0


def test_older_names() -> None:
    text = (
        b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n"
        b"vllm:time_per_output_token_seconds_sum 1.0\nvllm:time_per_output_token_seconds_count 50\n"
    )
    report = MetricsReader().read(text)
    assert (report.running, report.kv_usage, report.itl_avg_s) == (1, 0.5, 0.02)


def test_llama_server() -> None:
    report = MetricsReader().read(b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n")
    assert (report.running, report.waiting) == (2, 5)


@pytest.mark.parametrize("labels", [b"", b'{engine="0"}', b'{model="a}b, \\"c\\" {"}'])
@pytest.mark.parametrize("rest", [b"", b" 1395066363000", b' # {trace_id="a"} 0.67 1520879607.789'])
def test_what_stands_around_a_value(labels: bytes, rest: bytes) -> None:
    assert MetricsReader().read(b"vllm:num_requests_running%b 5%b\n" % (labels, rest)).running == 5


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
    assert MetricsReader().read(text) == LoadReport()
