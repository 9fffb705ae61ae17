"""AIBrix's regression runs: Llama-3.1-8B on 8 vLLM replicas, prompts of about 21,000 tokens.

github.com/vllm-project/aibrix e3e10f9, test/regression (Apache-2.0). Which replica served a request is not
told, so only distributions are compared, of a simulated cluster under a routing that the configuration's name
tells. Levels of a configuration ran one after another with growing rates, and prefix caches outlive a level:
the simulation serves the lower levels before each one, as far apart that nothing of them is left but the
caches. A user's prompt is taken as that user's alone; a later one begins with all of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from random import Random

from backends.engine import profile
from benchmarks.calibrate.measured import Level, Measured, Splitter, Study
from benchmarks.calibrate.profile import CHUNKED
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import Count, Number, Record, grouped, table

FOLDER = "aibrix_vllm_llama31_8b"
REPLICAS = 8
#: Large blocks, so that a prompt of 21,000 tokens is some forty ids; a prefix is found up to one block less.
BLOCK_TOKENS = 512
#: The A100 runs' own profile, and the H20 runs' nearest.
NEAREST = "llama-3.1-8b@a100-80g"
#: KV memory in tokens: the A100's as in its profile; the H20 has 16 GiB more, of which vLLM takes 90 %, and
#: a token takes 131,072 bytes.
KV_TOKENS = {
    "v0.2.1": profile(NEAREST).kv_capacity_tokens,
    "v0.3.0": profile(NEAREST).kv_capacity_tokens + int(0.9 * 2**34 / 131_072),
}
_APART_S = 10_000.0
_SEED = 1


class Request(Record):
    """A row of the published requests."""

    release: str
    config: str
    qps: Number
    launch_s: Number
    prompt_tokens: Count
    generation_tokens: Count
    ttft_s: Number
    generation_s: Number
    user_id: str


@dataclass(frozen=True, slots=True)
class _Configuration:
    """How requests find their replica: `by_user`, or drawn evenly (a plain Kubernetes service)."""

    release: str
    config: str
    by_user: bool
    engine: Mapping[str, tuple[int, ...]]


#: What the published manifests (k8s_stack.yaml, ps_k8s_stack.yaml) start, all of them with prefix caching: vLLM
#: 0.7.0 with `--enable-chunked-prefill false --max-model-len 32000`, whose budget of a step is then that length,
#: and vLLM 0.8.5, whose engine (v1) chunks with any option, with the defaults that it has on a GPU of 70 GiB
#: and more that is no A100 (vllm/engine/arg_utils.py, `_set_default_args_v1`).
_VLLM_0_7 = {CHUNKED: (False,), "max_batched_tokens": (32_000,), "max_seqs": (256,)}
_VLLM_0_8 = {CHUNKED: (True,), "max_batched_tokens": (8192,), "max_seqs": (1024,)}
CONFIGURATIONS = (
    _Configuration("v0.2.1", "naive", by_user=False, engine=_VLLM_0_7),
    _Configuration("v0.2.1", "ps_naive", by_user=True, engine=_VLLM_0_7),
    _Configuration("v0.3.0", "naive", by_user=False, engine=_VLLM_0_8),
)


def read(data: Path, split: Splitter) -> list[Study]:
    """A study for each configuration whose routing is known from its name."""
    path = data / FOLDER / "requests.csv.gz"
    runs = grouped(table(path, Request), attrgetter("release", "config"))
    studies = [
        _study(each, runs[each.release, each.config], split)
        for each in CONFIGURATIONS
        if (each.release, each.config) in runs
    ]
    if not studies:
        raise WorkloadError(f"{path}: none of the configurations that can be simulated")
    return studies


def _study(configuration: _Configuration, rows: Iterable[Request], split: Splitter) -> Study:
    release = configuration.release
    route = _router(by_user=configuration.by_user)
    runs = grouped(rows, attrgetter("qps"))
    levels: list[Level] = []
    before: list[Measured] = []
    for qps, run in sorted(runs.items()):
        own = sorted((_request(row, route) for row in run), key=lambda each: each.arrival_s)
        levels.append(Level(f"{qps:g}", (*before, *own)))
        shift_s = -_APART_S * (len(runs) - len(levels) + 1)
        before += [replace(each, arrival_s=each.arrival_s + shift_s, ttft_s=None, e2e_s=None) for each in own]
    names = [level.name for level in levels]
    limits = {
        **configuration.engine,
        "kv_capacity_tokens": (KV_TOKENS[release],),
        "block_tokens": (BLOCK_TOKENS,),
    }
    routing = "each user has one replica" if configuration.by_user else "replicas drawn evenly"
    return Study(
        f"{release}-{configuration.config}",
        {level.name: level for level in levels},
        split(names),
        limits,
        start=NEAREST,
        paired=False,
        prefix_caching=True,
        notes=(
            f"{REPLICAS} replicas, {routing} (assumed from the configuration's name); distributions compared",
        ),
    )


def _router(*, by_user: bool) -> Callable[[str], int]:
    """Users take replicas in turn as they first come, or every request draws one."""
    rng, seats = Random(_SEED), dict[str, int]()

    def route(user: str) -> int:
        return seats.setdefault(user, len(seats) % REPLICAS) if by_user else rng.randrange(REPLICAS)

    return route


def _request(row: Request, route: Callable[[str], int]) -> Measured:
    prompt, output = row.prompt_tokens, max(1, row.generation_tokens)
    blocks = tuple(int(row.user_id) << 16 | block for block in range(prompt // BLOCK_TOKENS))
    e2e_s = row.ttft_s + row.generation_s
    return Measured(row.launch_s, prompt, output, row.ttft_s, e2e_s, route(row.user_id), blocks)
