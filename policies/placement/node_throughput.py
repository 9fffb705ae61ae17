"""Tokens per second of a node that holds k layers, T(k): what Helix's planner and its max-flow graph take as capacity.

Source: Helix (ASPLOS '25) and its artifact. Assumed is a typical batch: 30 % of the node's KV cache holds requests of mean
length, and the node works on a share of them: its own time over the time of a round trip through all layers. The round trip
depends on the speed of the other machines, so T is iterated ten times from a first guess. A batch of less than one prompt is
scaled up to one. Prompt and decode tokens of the batch are rounded, so T does not fall evenly with k.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.placement.pipeline import MachineKind

#: Tokens of a mean request in the Azure conversation trace.
MEAN_INPUT_TOKENS, MEAN_OUTPUT_TOKENS = 750, 240
_KV_SHARE = 0.3
_ITERATIONS = 10
#: If the typical layers of all machines hold the model fewer times than this, each machine holds as many layers as it can.
_SPARE = 1.2


class NodeThroughput:
    """T(k) of each kind of machine in a mix.

    `counts` says how many machines of each kind there are; `typical_layers` how many layers each holds in a usual
    placement. Where those do not hold the model 1.2 times, machines are taken to be full. `first_guess` is each kind's
    layers x tokens/s, on any scale. Rounding can keep the iteration from settling, so that the guess shows in T.
    """

    def __init__(
        self,
        machines: Mapping[str, MachineKind],
        counts: Mapping[str, int],
        typical_layers: Mapping[str, int],
        first_guess: Mapping[str, float],
        model_layers: int,
    ) -> None:
        self.machines = {name: machines[name] for name in counts}
        self._counts = counts
        self._model_layers = model_layers
        self._typical = {name: typical_layers[name] for name in counts}
        if sum(counts[name] * typical_layers[name] for name in counts) < model_layers * _SPARE:
            self._typical = {name: machine.max_layers for name, machine in self.machines.items()}
        self.layer_tokens_per_s = {name: first_guess[name] for name in counts}
        for _ in range(_ITERATIONS):
            self.layer_tokens_per_s = {
                name: self(name, layers) * layers for name, layers in self._typical.items()
            }

    def __call__(self, machine: str, layers: int) -> float:
        """Tokens per second of prompts and decodes together, for the mean batch of such a node."""
        kind = self.machines[machine]
        kv_tokens = int(_KV_SHARE * kind.limits[layers - 1].kv_token_layers / layers)
        requests = kv_tokens / (MEAN_INPUT_TOKENS + MEAN_OUTPUT_TOKENS) * self._share(machine, layers)
        prompts = requests / MEAN_OUTPUT_TOKENS
        if prompts > 1:
            scale, prompt_tokens, decode_tokens = 1.0, MEAN_INPUT_TOKENS, MEAN_OUTPUT_TOKENS
        else:
            scale, prompt_tokens, decode_tokens = (
                1 / prompts,
                round(prompts * MEAN_INPUT_TOKENS),
                round(requests),
            )
        prompt_s = kind.prompt.at(int(prompt_tokens * scale))
        decode_s = kind.decode.at(decode_tokens) * scale
        return scale * (prompt_tokens + decode_tokens) / (layers * (prompt_s + decode_s))

    def _share(self, machine: str, layers: int) -> float:
        """The part of a request's round trip that it spends in this node."""
        times = {name: 1 / speed for name, speed in self.layer_tokens_per_s.items()}
        total_s: float = 0
        total_layers = 0
        for name, count in self._counts.items():
            total_s += count * self._typical[name] * times[name]
            total_layers += count * self._typical[name]
        own = layers * times[machine]
        return own / ((self._model_layers - layers) * (total_s / total_layers) + own)
