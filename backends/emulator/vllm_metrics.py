"""The Prometheus page of the emulated vLLM: every family of vLLM 0.32 under its real name.

Values that the model knows are real (running, waiting, KV use, prefix cache, preemptions, tokens, latencies). Others
stay 0 (multi-modal and external caches, FLOP estimates). Times are wall seconds as a scraper measures them: the model's
time divided by the speed. Names, types and buckets are those of vLLM's `v1/metrics/loggers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count, takewhile

from backends.emulator.generation import Choice
from backends.engine.batching import Engine
from router.core.histogram import Histogram

_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_STEP_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N_BUCKETS = (1, 2, 5, 10, 20)
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
#: Histograms in the order of the page: what vLLM says of each, and its buckets (None: 1, 2, 5, ... up to the context).
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", None),
    "request_generation_tokens": ("Number of generation tokens processed.", None),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _STEP_BUCKETS),
    "request_max_num_generation_tokens": ("Histogram of maximum number of requested generation tokens.", None),
    "request_params_n": ("Histogram of the n request parameter.", _N_BUCKETS),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", None),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL_BUCKETS),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _ITL_BUCKETS),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY_BUCKETS),
    "request_queue_time_seconds": ("Time spent in WAITING phase for request.", _LATENCY_BUCKETS),
    "request_inference_time_seconds": ("Time spent in RUNNING phase for request.", _LATENCY_BUCKETS),
    "request_prefill_time_seconds": ("Time spent in PREFILL phase for request.", _LATENCY_BUCKETS),
    "request_decode_time_seconds": ("Time spent in DECODE phase for request.", _LATENCY_BUCKETS),
    "request_num_preemptions": ("Number of times a request was preempted.", _N_BUCKETS),
    "request_prefill_kv_computed_tokens": ("New KV tokens computed during prefill (excluding cached tokens).", None),
}  # fmt: skip


def one_two_five(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, ... up to `most`, the buckets of vLLM's token histograms."""
    scales = takewhile(lambda scale: scale <= most, (10**power for power in count()))
    return tuple(mantissa * scale for scale in scales for mantissa in (1, 2, 5) if mantissa * scale <= most)


class VllmMetrics:
    """The counts of the emulated server, and the page that shows them (`generation.Observer`)."""

    def __init__(self, engine: Engine, model: str, max_model_len: int, speed: float) -> None:
        self._engine = engine
        self._model = model
        self._speed = speed
        tokens = one_two_five(max_model_len)
        self._histograms = {
            name: Histogram(tokens if bounds is None else bounds) for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self._itl = self._histograms["inter_token_latency_seconds"]  # observed once a token
        self._success: Counter[str] = Counter()
        self.rejections_total = 0
        self._cached_tokens_total = 0
        self._iteration_seen_tokens = 0

    # --- what happens ---
    def request(self, n: int, max_tokens: int | None) -> None:
        """A request was admitted."""
        self._observe("request_params_n", n)
        if max_tokens is not None:
            self._observe("request_params_max_tokens", max_tokens)

    def first_token(self, choice: Choice, at_s: float) -> None:
        self._observe("time_to_first_token_seconds", (at_s - _submitted_at_s(choice)) / self._speed)
        self._cached_tokens_total += choice.sequence.cached_tokens

    def later_token(self, gap_s: float) -> None:
        self._itl.observe(gap_s / self._speed)

    def step(self) -> None:
        """Progress was reported: the work since the last time counts as one iteration."""
        seen = self._engine.prompt_tokens_total + self._engine.generation_tokens_total
        if seen > self._iteration_seen_tokens:
            self._observe("iteration_tokens_total", seen - self._iteration_seen_tokens)
            self._iteration_seen_tokens = seen

    def finished(self, choice: Choice, at_s: float) -> None:
        speed = self._speed
        sequence = choice.sequence
        arrived = _submitted_at_s(choice)
        first = choice.first_at if choice.first_at is not None else at_s
        admitted = sequence.admitted_at_s if sequence.admitted_at_s is not None else arrived
        self._success[choice.finish_reason] += 1
        for name, seconds in (
            ("e2e_request_latency_seconds", at_s - arrived),
            ("request_queue_time_seconds", admitted - arrived),
            ("request_inference_time_seconds", at_s - admitted),
            ("request_prefill_time_seconds", first - admitted),
            ("request_decode_time_seconds", at_s - first),
        ):
            self._observe(name, seconds / speed)
        if choice.produced > 1:
            self._observe(
                "request_time_per_output_token_seconds", (at_s - first) / speed / (choice.produced - 1)
            )
        self._observe("request_prompt_tokens", sequence.prompt_tokens)
        self._observe("request_generation_tokens", choice.produced)
        self._observe("request_max_num_generation_tokens", choice.produced)
        self._observe("request_prefill_kv_computed_tokens", sequence.prompt_tokens - sequence.cached_tokens)
        self._observe("request_num_preemptions", 0)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def aborted(self, choice: Choice, at_s: float) -> None:
        self._success["abort"] += 1

    # --- the page ---
    def page(self) -> bytes:
        """The text of /metrics."""
        out: list[str] = []

        def sample(name: str, value: float, label: str = "", of: str = "") -> None:
            out.append(f"vllm:{name}{_labels(self._model, label, of)} {float(value)}\n")

        def head(name: str, kind: str, text: str) -> None:
            out.append(f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\n")

        for kind, name, text, value in self._families():
            head(name, kind, text)
            label, values = value if isinstance(value, tuple) else ("", {"": value})
            for of, number in values.items():
                sample(name, number, label, of)
        out.append(
            f'vllm:admission_rejections_total{{model_name="{_escape(self._model)}",reason="max_num_queued_reqs"}}'
            f" {float(self.rejections_total)}\n"
        )
        for name, histogram in self._histograms.items():
            head(name, "histogram", _HISTOGRAMS[name][0])
            below = 0
            for bound, inside in zip((*map(float, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                below += inside
                sample(f"{name}_bucket", below, "le", str(bound))
            sample(f"{name}_count", below)
            sample(f"{name}_sum", histogram.total)
        head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        profile = self._engine.profile
        info = {
            "block_size": str(profile.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(self._engine.prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": "0.9",
            "num_gpu_blocks": str(profile.kv_capacity_tokens // profile.block_tokens),
        }
        labels = ",".join(f'{key}="{value}"' for key, value in info.items())
        out.append(f"vllm:cache_config_info{{{labels}}} 1.0\n")
        return "".join(out).encode()

    def _families(self) -> Iterator[tuple[str, str, str, float | tuple[str, Mapping[str, float]]]]:
        """(kind, name, what vLLM says of it, value, or one more label with its values), in the order of the page."""
        engine, cached = self._engine, self._cached_tokens_total
        sources = {
            "local_compute": engine.prompt_tokens_total - cached,
            "local_cache_hit": cached,
            "external_kv_transfer": 0,
        }
        ended = {reason: self._success[reason] for reason in _FINISHED_REASONS}
        reasons = {"capacity": engine.waiting, "deferred": 0}
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        for what in ("flops", "read_bytes", "write_bytes"):
            yield "counter", f"estimated_{what}_per_gpu_total", f"Estimated {what} per GPU (not modelled).", 0
        yield from (
            ("gauge", "num_requests_running", "Number of requests in model execution batches.", engine.running),
            ("gauge", "num_requests_waiting", "Number of requests waiting to be processed.", engine.waiting),
            ("gauge", "num_requests_waiting_by_reason", "Number of waiting requests by reason.", ("reason", reasons)),
            ("gauge", "engine_sleep_state", "Engine sleep state.", ("sleep_state", states)),
            ("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_usage),
            ("counter", "prefix_cache_queries_total", "Prefix cache queries, in queried tokens.", engine.prefix_queries_total),
            ("counter", "prefix_cache_hits_total", "Prefix cache hits, in cached tokens.", engine.prefix_hits_total),
            ("counter", "external_prefix_cache_queries_total", "External prefix cache queries (not modelled).", 0),
            ("counter", "external_prefix_cache_hits_total", "External prefix cache hits (not modelled).", 0),
            ("counter", "mm_cache_queries_total", "Multi-modal cache queries (not modelled).", 0),
            ("counter", "mm_cache_hits_total", "Multi-modal cache hits (not modelled).", 0),
            ("counter", "num_preemptions_total", "Cumulative number of preemption from the engine.", engine.preemptions_total),
            ("counter", "prompt_tokens_total", "Number of prefill tokens processed.", engine.prompt_tokens_total),
            ("counter", "prompt_tokens_by_source_total", "Number of prompt tokens by source.", ("source", sources)),
            ("counter", "prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", cached),
            ("counter", "prompt_tokens_cached_by_source_total", "Prefix-cache hit tokens by cache tier.", ("source", {"device": cached})),
            ("counter", "generation_tokens_total", "Number of generation tokens processed.", engine.generation_tokens_total),
            ("counter", "request_success_total", "Count of successfully processed requests.", ("finished_reason", ended)),
            ("counter", "admission_rejections_total", "Admission attempts rejected by a queue limit, by reason.", ("", {})),
        )  # fmt: skip


def _submitted_at_s(choice: Choice) -> float:
    at_s = choice.sequence.submitted_at_s
    return at_s if at_s is not None else choice.generation.submitted_at


@lru_cache(10_000)
def _labels(model: str, label: str, of: str) -> str:
    """The labels of a sample, one more than every sample has if `label` is not empty."""
    pairs = {"engine": "0", "model_name": _escape(model)} | ({label: of} if label else {})
    return "{" + ",".join(f'{key}="{pairs[key]}"' for key in sorted(pairs)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
