"""ServeGen: what Alibaba Model Studio's clients asked over days, by client and window, not by request.

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
from typing import Literal

import orjson

from benchmarks.workloads.clients import LEVELS, Client, ClientPool, Lengths, TokenQuantiles, Window
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.sources.source import (
    Choices,
    Reader,
    Source,
    csv_rows,
    number,
    open_text,
    whole_number,
)

_COMMIT = "f891d1189eb32b3868dfc443800c4150548c282a"
_URL = f"https://raw.githubusercontent.com/alibaba/ServeGen/{_COMMIT}/data/{{}}/chunk-{{}}-{{}}"
_CHUNK = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)")
_SIDES = ("input_tokens", "output_tokens")


def _window(rate: str, pattern: str, shape: str, path: Path, line: int) -> Window | None:
    """A window's arrivals; None where nothing arrived."""
    rate_per_s = number(rate or 0, path, line, "rate")
    if not rate_per_s or not pattern:
        return None
    family: Literal["Gamma", "Weibull"]
    if pattern == "Gamma":
        family = "Gamma"
    elif pattern == "Weibull":
        family = "Weibull"
    else:
        raise WorkloadError(f"{path}, line {line}: pattern must be Gamma or Weibull, not {pattern!r}")
    return Window(rate_per_s, family, number(shape, path, line, "shape", 1e-6))


def _pool(name: str, clients: Mapping[int, Client], path: Path) -> ClientPool:
    if not any(client.windows for client in clients.values()):
        raise WorkloadError(f"{path}: no client asks anything in it")
    if not any(client.lengths for client in clients.values()):
        raise WorkloadError(f"{path}: no client's lengths are known")
    return ClientPool(name, clients)


def _folder_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> ClientPool:
        arrivals, lengths = paths
        clients: dict[int, Client] = {}
        for line, row in csv_rows(arrivals, ("client", "t_s", "rate_per_s", "pattern", "param1")):
            window = _window(row["rate_per_s"], row["pattern"], row["param1"], arrivals, line)
            if window is not None:
                client = clients.setdefault(whole_number(row["client"], arrivals, line, "client"), Client())
                client.windows[whole_number(row["t_s"], arrivals, line, "t_s")] = window
        columns = [
            [f"{side}_mean", *(f"{side}_p{level * 100:.0f}" for level in LEVELS)] for side in ("in", "out")
        ]
        for line, row in csv_rows(lengths, ("client", "t_s", *itertools.chain(*columns))):
            client = clients.setdefault(whole_number(row["client"], lengths, line, "client"), Client())
            sides = []
            for names in columns:
                mean, *quantiles = (number(row[each], lengths, line, each) for each in names)
                sides.append(TokenQuantiles(mean, quantiles))
            client.lengths[whole_number(row["t_s"], lengths, line, "t_s")] = Lengths(*sides)
        return _pool(name, clients, arrivals)

    return read


def _original_reader(name: str) -> Reader:
    def read(paths: Sequence[Path], _choices: Choices) -> ClientPool:
        clients: dict[int, Client] = {}
        for path in paths:
            match = _CHUNK.fullmatch(path.name)
            if match is None:
                raise WorkloadError(
                    f"{path}: expected chunk-N-trace.csv and chunk-N-dataset.json of ServeGen"
                )
            client = clients.setdefault(int(match[1]), Client())
            if match[2] == "trace.csv":
                client.windows.update(_trace(path))
            else:
                client.lengths.update(_dataset(path))
        return _pool(name, clients, paths[0])

    return read


def _trace(path: Path) -> dict[int, Window]:
    windows: dict[int, Window] = {}
    with open_text(path) as text:
        for line, row in enumerate(text, start=1):
            fields = row.strip().split(",")
            if len(fields) != 6:
                raise WorkloadError(f"{path}, line {line}: expected 6 values, not {len(fields)}")
            window = _window(fields[1], fields[3], fields[4], path, line)
            if window is not None:
                windows[whole_number(fields[0], path, line, "start")] = window
    return windows


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
    total = sum(share for _, share in histogram)
    reached = list(itertools.accumulate(share for _, share in histogram))
    mean = sum(length * share for length, share in histogram) / total
    quantiles = [
        next(length for (length, _), below in zip(histogram, reached, strict=True) if below >= level * total)
        for level in LEVELS
    ]
    return TokenQuantiles(mean, quantiles)


def _source(name: str, folder: str, what: str, clients: Sequence[int]) -> Source:
    model = folder.partition("/")[2]
    return Source(
        name=name,
        title=f"ServeGen: clients of {what}, requests drawn from their rates, bursts and lengths",
        licence="Apache-2.0",
        timed=True,
        texts=False,
        folder_files=(f"servegen/{model}_arrivals.csv.gz", f"servegen/{model}_lengths.csv.gz"),
        read_folder=_folder_reader(name),
        read_original=_original_reader(name),
        urls=lambda _choices: [
            _URL.format(folder, client, kind) for client in clients for kind in ("trace.csv", "dataset.json")
        ],
        patterns=("chunk-*-trace.csv", "chunk-*-dataset.json"),
    )


def _but(last: int, *missing: int) -> list[int]:
    """Client numbers up to `last`, those left out that are not known to have asked anything."""
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
