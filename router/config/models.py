"""The fleet file as frozen values, with defaults and bounds.

Unknown keys and values of the wrong type are errors (YAML's `"8080"` is no port, `true` is no number). Times have the
unit in their name and may be fractions. The file never contains secrets: a key that ends in `_env` names the
environment variable that holds one, which is read when the gateway is built.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from router.config import sections
from router.config.fields import Count, Int, ModelName, PriceConfig, Section, Share, SloConfig, Text
from router.config.instances import EngineConfig, EngineUrl, InstanceConfig, TemplateConfig
from router.config.marks import AT_START
from router.config.scaling import PoolConfig, ScalingConfig
from router.core.types import Candidate, Price


class ModelConfig(Section):
    """A model that clients request by name. `quality` in [0, 1] is a prior. `fallbacks` are tried in order if no
    instance can take the model itself."""

    name: ModelName
    family: Text | None = None
    aliases: tuple[ModelName, ...] = ()
    fallbacks: tuple[ModelName, ...] = ()
    context_tokens: Count | None = None
    price: PriceConfig | None = None
    quality: Share | None = None
    slo: SloConfig | None = None


class KubernetesConfig(Section):
    """Pods that have the labels in `selector` (`app=vllm,tier!=test`) in a namespace (None: the gateway's own), with
    their engine at `port`. `server` is the API server's URL (None: that of the cluster in which the gateway runs)."""

    selector: Text
    namespace: Text | None = None
    port: Annotated[Int, Field(ge=1, le=65535)] = 8000
    scheme: Literal["http", "https"] = "http"
    server: EngineUrl | None = None


class DiscoveryConfig(Section):
    """Instances that are found while the gateway runs. Each ready pod becomes an instance with the pod's name and the
    settings in `instance`. The pod's annotation `headway/instance` (JSON) overrides single settings."""

    kubernetes: KubernetesConfig
    instance: TemplateConfig


class FleetConfig(Section):
    """The whole file.

    `upstream_stream`: `always` has engines stream every answer that they can, so that its TTFT is known; `when_needed` asks
    for an answer in one piece where nothing needs the stream (`router.core.streaming`).
    """

    server: sections.ServerConfig = sections.ServerConfig()
    auth: sections.AuthConfig = sections.AuthConfig()
    store: sections.StoreConfig = sections.StoreConfig()
    state: sections.StateConfig = sections.StateConfig()
    defaults: sections.DefaultsConfig = sections.DefaultsConfig()
    limits: sections.LimitsConfig = sections.LimitsConfig()
    scheduling: sections.SchedulingConfig = sections.SchedulingConfig()
    upstream_stream: Literal["always", "when_needed"] = "always"
    probes: sections.ProbesConfig = sections.ProbesConfig()
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    instances: tuple[InstanceConfig, ...] = ()
    discovery: Annotated[tuple[DiscoveryConfig, ...], AT_START] = ()
    scaling: ScalingConfig = ScalingConfig()
    predictors: sections.PredictorsConfig = sections.PredictorsConfig()
    judge: Annotated[sections.JudgeConfig | None, AT_START] = None
    second_look: Annotated[sections.SecondLookConfig | None, AT_START] = None
    observability: sections.ObservabilityConfig = sections.ObservabilityConfig()
    ui: sections.UiConfig = sections.UiConfig()

    def model(self, name: str) -> ModelConfig | None:
        """The model with this name or alias."""
        return next((each for each in self.models if name == each.name or name in each.aliases), None)

    def instance(self, name: str) -> InstanceConfig | None:
        return next((each for each in self.instances if each.name == name), None)

    def discovery_of(self, pool: PoolConfig) -> DiscoveryConfig | None:
        """The entry that finds the pods of a pool: the one with its model and its hardware."""
        return next(
            (
                each
                for each in self.discovery
                if tuple(each.instance.serves) == (pool.model,)
                and each.instance.hardware == pool.instance.hardware
            ),
            None,
        )

    def machine_names(self) -> set[tuple[str, str]]:
        """The variables and files that engines may use on the gateway's machine: those of the file's engines, and
        `auth.engine_env`."""
        engines: list[EngineConfig] = [
            *self.instances,
            *(each.instance for each in self.discovery),
            *(each.instance for each in self.scaling.pools),
        ]
        found = {name for each in engines for name in each.machine_names()}
        return found | {("environment variable", name) for name in self.auth.engine_env}

    def candidates(self, instance: InstanceConfig) -> dict[str, Candidate]:
        """The candidates of an instance by the fleet's model name: the instance's own settings of a model, else the
        model's. A candidate's context is never larger than the model's."""
        models = {each.name: each for each in self.models}
        found = {}
        for name, served in instance.serves.items():
            model = models[name]
            price = served.price or model.price
            contexts = [tokens for tokens in (served.context_tokens, model.context_tokens) if tokens]
            found[name] = Candidate(
                instance=instance.name,
                model=name,
                upstream_model=served.name,
                price=price.price() if price else Price(),
                context_tokens=min(contexts, default=None),
                quality=model.quality if served.quality is None else served.quality,
                quantization=served.quantization,
                family=model.family,
            )
        return found
