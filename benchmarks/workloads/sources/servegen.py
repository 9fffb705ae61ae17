"""ServeGen: traffic of Alibaba Model Studio's clients over days, by client and window, not by request.

Xiang et al., "ServeGen", NSDI 2026; alibaba/ServeGen, data/{language,reason}/MODEL. Requests are drawn from it
(`clients`). Files of client i:
chunk-i-trace.csv, no header: start (s), requests/s, CV of the gaps, Gamma or Weibull, two parameters; 600 s each.
chunk-i-dataset.json: {start: {"input_tokens": "{length: share, ...}", "output_tokens": "..."}}; 6 h each.

The two parameters are shape and scale (s) of the gaps. A Gamma's shape is 1 / cv^2 throughout, and its shape x
scale is 1 / rate but where a client was active in a part of the window only; a Weibull is a fit of its own (its
mean is 1.2 / rate and its CV 0.8 of the column's at the median). So only the shape is used, with the column
`rate`, as ServeGen's generator does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import orjson
from pydantic import create_model, model_validator
from pydantic_core import PydanticCustomError

from benchmarks.workloads.clients import LEVELS, Client, ClientPool, Lengths, TokenQuantiles, Window
from benchmarks.workloads.format import WorkloadError, checked
from benchmarks.workloads.published import EMPTY, Count, NotNegative, Record, open_text, table
from benchmarks.workloads.sources.source import Choices, Source

_COMMIT = "f891d1189eb32b3868dfc443800c4150548c282a"
_URL = f"https://raw.githubusercontent.com/alibaba/ServeGen/{_COMMIT}/data/{{}}/chunk-{{}}-{{}}"
_CHUNK = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)")
_SIDES = ("input_tokens", "output_tokens")


class _Window(Record):
    t_s: Count
    rate_per_s: Annotated[NotNegative | None, EMPTY]
    pattern: Literal["Gamma", "Weibull", ""]
    #: The shape of the gaps.
    param1: Annotated[NotNegative | None, EMPTY]

    @model_validator(mode="after")
    def _has_a_shape(self) -> Self:
        if self.rate_per_s and self.pattern and not self.param1:
            raise PydanticCustomError("shape", "param1 must be above 0 where requests arrive")
        return self

    def add_to(self, client: Client) -> None:
        """Note the window, unless nothing arrived in it."""
        if self.rate_per_s and self.pattern and self.param1:
            client.windows[self.t_s] = Window(self.rate_per_s, self.pattern, self.param1)


class _Arrivals(_Window):
    client: Count


_COLUMNS = [[f"{side}_mean", *(f"{side}_p{level * 100:.0f}" for level in LEVELS)] for side in ("in", "out")]


class _Place(Record):
    client: Count
    t_s: Count


#: Mean and quantiles of the lengths of a client's prompts and answers, from a time on.
_Lengths: type[_Place] = create_model(
    "_Lengths", __base__=_Place, **dict[str, Any](dict.fromkeys(itertools.chain(*_COLUMNS), NotNegative))
)


def _pool(name: str, clients: Mapping[int, Client], path: Path) -> ClientPool:
    if not any(client.windows for client in clients.values()):
        raise WorkloadError(f"{path}: no client asks anything in it")
    if not any(client.lengths for client in clients.values()):
        raise WorkloadError(f"{path}: no client's lengths are known")
    return ClientPool(name, clients)


def _read_folder(name: str, paths: Sequence[Path], _choices: Choices) -> ClientPool:
    arrivals, lengths = paths
    clients: dict[int, Client] = {}
    for row in table(arrivals, _Arrivals):
        row.add_to(clients.setdefault(row.client, Client()))
    for place in table(lengths, _Lengths):
        sides = ([getattr(place, column) for column in columns] for columns in _COLUMNS)
        known = Lengths(*(TokenQuantiles(mean, quantiles) for mean, *quantiles in sides))
        clients.setdefault(place.client, Client()).lengths[place.t_s] = known
    return _pool(name, clients, arrivals)


def _read_original(name: str, paths: Sequence[Path], _choices: Choices) -> ClientPool:
    clients: dict[int, Client] = {}
    for path in paths:
        match = _CHUNK.fullmatch(path.name)
        if match is None:
            raise WorkloadError(f"{path}: expected chunk-N-trace.csv and chunk-N-dataset.json of ServeGen")
        client = clients.setdefault(int(match[1]), Client())
        if match[2] == "trace.csv":
            _trace(path, client)
        else:
            client.lengths.update(_dataset(path))
    return _pool(name, clients, paths[0])


def _trace(path: Path, client: Client) -> None:
    with open_text(path) as text:
        for line, row in enumerate(text, start=1):
            fields = row.strip().split(",")
            where = f"{path}, line {line}"
            if len(fields) != 6:
                raise WorkloadError(f"{where}: expected 6 values, not {len(fields)}")
            start, rate, _, pattern, shape, _ = fields
            data = {"t_s": start, "rate_per_s": rate, "pattern": pattern, "param1": shape}
            checked(_Window.model_validate, data, where).add_to(client)


def _dataset(path: Path) -> dict[int, Lengths]:
    with open_text(path) as text:
        try:
            data = orjson.loads(text.read())
            shares = {
                int(start): [_histogram(sides[side]) for side in _SIDES] for start, sides in data.items()
            }
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise WorkloadError(f"{path}: not a dataset of ServeGen ({error!r})") from None
    return {
        start: Lengths(*(_quantiles(histogram) for histogram in sides))
        for start, sides in shares.items()
        if all(sides)
    }


def _histogram(written: str) -> list[tuple[int, float]]:
    """`{12: 0.25, 13: 0.75}` as pairs of length and share, lengths rising."""
    inside = written.strip().removeprefix("{").removesuffix("}")
    pairs = (item.split(":") for item in inside.split(",") if item.strip())
    return sorted((int(length), float(share)) for length, share in pairs)


def _quantiles(histogram: Sequence[tuple[int, float]]) -> TokenQuantiles:
    lengths, shares = np.array(histogram).T
    quantiles = np.quantile(lengths, LEVELS, weights=shares, method="inverted_cdf")
    return TokenQuantiles(float(np.average(lengths, weights=shares)), quantiles.tolist())


def _source(name: str, folder: str, what: str, clients: Sequence[int]) -> Source:
    model = folder.partition("/")[2]
    return Source(
        name=name,
        title=f"ServeGen: clients of {what}, requests drawn from their rates, bursts and lengths",
        licence="Apache-2.0",
        timed=True,
        folder_files=(f"servegen/{model}_arrivals.csv.gz", f"servegen/{model}_lengths.csv.gz"),
        read_folder=_read_folder,
        read_original=_read_original,
        urls=lambda _choices: [
            _URL.format(folder, client, kind) for client in clients for kind in ("trace.csv", "dataset.json")
        ],
        patterns=("chunk-*-trace.csv", "chunk-*-dataset.json"),
    )


def _but(last: int, *missing: int) -> list[int]:
    """Client numbers up to `last`, those left out without published requests."""
    return [client for client in range(last + 1) if client not in missing]


M_SMALL = _source("servegen_m_small", "language/m-small", "a small Qwen model, 14 days", _but(41, 32))
M_MID = _source("servegen_m_mid", "language/m-mid", "a middle Qwen model, 14 days", _but(108, 24, 89, 97))
M_LARGE = _source(
    "servegen_m_large",
    "language/m-large",
    "a large Qwen model, 14 days",
    _but(161, 18, 19, 23, 29, 40, 71, 85, 98, 108, 109),
)
DEEPSEEK_R1 = _source(
    "servegen_deepseek_r1",
    "reason/deepseek-r1",
    "DeepSeek-R1, one day",
    _but(72, 13, 29, 46, 51, 55, 57, 59, 67),
)
SERVEGEN = (M_SMALL, M_MID, M_LARGE, DEEPSEEK_R1)
