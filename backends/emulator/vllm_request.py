"""The parameters of a request to the emulated vLLM, checked as vLLM checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.emulator import openai_fields as fields
from backends.emulator.text import BYTES_PER_TOKEN, chat_text, count_tokens, encoded, requested_output_tokens


@dataclass(slots=True)
class Prompt:
    """One prompt: its bytes (for token ids: four bytes each) and its tokens."""

    data: bytes
    tokens: int


@dataclass(slots=True)
class Job:
    """One chat or completion request, checked."""

    chat: bool
    prompts: list[Prompt]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stops: list[str] = field(default_factory=list)
    as_json: bool = False
    schema: Mapping[str, Any] | None = None  # that the JSON must fit
    tool: Mapping[str, Any] | None = None
    tool_named: bool = False
    logprobs: int | None = None  # number of alternatives for each token; None: not requested
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None  # -1: to the model's context
    echo: bool = False
    scores: bool = False  # the prompt alone is the answer: one token is made and not shown, as in vLLM
    requested_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)


def parse_chat(body: Mapping[str, Any], names: list[str]) -> Job:
    """A job from the body of /v1/chat/completions. Raises Rejected."""
    messages = fields.messages_of(body)
    if not messages:
        raise fields.invalid("messages must not be empty", "messages")
    job = Job(chat=True, prompts=[_text_prompt(chat_text(messages))])
    _parse_common(body, job, names)
    limit = fields.integer(body, "max_completion_tokens")
    if limit is not None:
        job.max_tokens = limit
    forced = fields.forced_tool(body)
    if forced is not None:
        job.tool, job.tool_named = forced
    top = fields.integer(body, "top_logprobs")
    wanted = fields.boolean(body, "logprobs")
    if top is not None and top > 0 and not wanted:
        raise fields.invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if top is not None and (top < 0 or top > 20):
        raise fields.invalid("`top_logprobs` must be a positive value or -1.", "top_logprobs")
    job.logprobs = (top or 0) if wanted else None
    _check_lengths(job)
    return job


def parse_completion(body: Mapping[str, Any], names: list[str]) -> Job:
    """A job from the body of /v1/completions. Raises Rejected."""
    if "prompt" not in body or body["prompt"] is None:
        raise fields.invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if body.get("suffix"):
        raise fields.invalid("suffix is only supported for models with FIM completion rendering", "suffix")
    job = Job(chat=False, prompts=prompts_of(body["prompt"], "prompt"))
    _parse_common(body, job, names)
    if body.get("max_tokens", ...) is ...:
        job.max_tokens = 16  # the default of this endpoint
    logprobs = fields.integer(body, "logprobs")
    if logprobs is not None and not 0 <= logprobs <= 20:
        raise fields.invalid("`logprobs` must be a positive value.", "logprobs")
    job.logprobs = logprobs
    job.echo = fields.boolean(body, "echo")
    if job.echo and job.max_tokens == 0:
        job.scores, job.max_tokens = True, 1
    _check_lengths(job)
    return job


def prompts_of(value: Any, name: str) -> list[Prompt]:
    """Prompts from a string, token ids, or a list of either."""
    if isinstance(value, str):
        return [_text_prompt(value)]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return [_text_prompt(item) for item in value]
        if _are_ids(value):
            return [_ids_prompt(value)]
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return [_ids_prompt(item) for item in value]
    raise fields.validation(name, "Input should be a string, a list of strings, or token ids")


def _are_ids(value: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value)


def _text_prompt(text: str) -> Prompt:
    data = encoded(text)
    return Prompt(data, count_tokens(data))


def _ids_prompt(ids: list[int]) -> Prompt:
    return Prompt(b"".join(item.to_bytes(BYTES_PER_TOKEN, "big") for item in ids), len(ids))


def _parse_common(body: Mapping[str, Any], job: Job, names: list[str]) -> None:
    job.stream = fields.boolean(body, "stream")
    options = body.get("stream_options")
    if options is not None:
        if not job.stream:
            raise fields.invalid("Stream options can only be defined when `stream=True`.", "stream_options")
        if not isinstance(options, Mapping):
            raise fields.validation("stream_options", "Input should be a valid dictionary")
        job.include_usage = fields.boolean(options, "include_usage")
        job.continuous_usage = job.include_usage and fields.boolean(options, "continuous_usage_stats")
    job.n = 1 if (n := fields.integer(body, "n")) is None else n
    if not 1 <= job.n <= 128:
        raise fields.invalid(f"n must be at least 1 and at most 128, got {job.n}.", "n")
    job.max_tokens = fields.integer(body, "max_tokens")
    job.min_tokens = fields.integer(body, "min_tokens") or 0
    job.ignore_eos = fields.boolean(body, "ignore_eos")
    job.stops = fields.strings(body, "stop")
    if "" in job.stops:
        raise fields.invalid("stop cannot contain an empty string.", "stop")
    job.as_json = fields.wants_json(body)
    job.schema = fields.wanted_schema(body)
    fields.number_between(body, "temperature", 0.0, 2.0)
    fields.number_between(body, "top_p", 0.0, 1.0)
    fields.number_between(body, "presence_penalty", -2.0, 2.0)
    fields.number_between(body, "frequency_penalty", -2.0, 2.0)
    job.prompt_logprobs = fields.integer(body, "prompt_logprobs")
    if job.prompt_logprobs is not None:
        if job.stream and (job.prompt_logprobs > 0 or job.prompt_logprobs == -1):
            raise fields.invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if job.prompt_logprobs < -1:
            raise fields.invalid("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs")
    job.truncate_prompt_tokens = truncation_of(body)
    extra = body.get("vllm_xargs")
    if extra is not None:
        if not isinstance(extra, Mapping):
            raise fields.validation("vllm_xargs", "Input should be a valid dictionary")
        try:
            job.requested_tokens = requested_output_tokens(extra.get("emulate_output_tokens"), names)
        except ValueError as error:
            raise fields.invalid(str(error), "vllm_xargs.emulate_output_tokens") from None


def _check_lengths(job: Job) -> None:
    if job.max_tokens is not None and job.max_tokens < 1:
        raise fields.invalid(f"max_tokens must be at least 1, got {job.max_tokens}.", "max_tokens")
    if job.min_tokens < 0:
        raise fields.invalid(
            f"min_tokens must be greater than or equal to 0, got {job.min_tokens}.", "min_tokens"
        )
    if job.max_tokens is not None and job.min_tokens > job.max_tokens:
        raise fields.invalid(
            f"min_tokens must be less than or equal to max_tokens={job.max_tokens}, got {job.min_tokens}.",
            "min_tokens",
        )


def truncation_of(body: Mapping[str, Any]) -> int | None:
    """To how many tokens each prompt is to be truncated."""
    tokens = fields.integer(body, "truncate_prompt_tokens")
    if tokens is not None and tokens < -1:
        raise fields.validation("truncate_prompt_tokens", "Input should be greater than or equal to -1")
    return tokens


def truncate(prompts: list[Prompt], tokens: int | None, max_model_len: int) -> None:
    """Truncate prompts as vLLM does: -1 leaves room for one token of output."""
    if tokens is None:
        return
    if tokens > max_model_len:
        raise fields.invalid(
            f"truncate_prompt_tokens={tokens} cannot be greater than max_model_len = {max_model_len}. "
            "Please request a smaller truncation size.",
            "truncate_prompt_tokens",
        )
    if tokens == 0:
        raise fields.invalid("The decoder prompt cannot be empty", "prompt")
    most = tokens if tokens >= 0 else max_model_len - 1
    for prompt in prompts:
        prompt.data, prompt.tokens = prompt.data[: most * BYTES_PER_TOKEN], min(prompt.tokens, most)


def check_context(job: Job, max_model_len: int) -> None:
    """Truncate the prompts if the request asks for it, and refuse it if it does not fit the context, as vLLM does."""
    truncate(job.prompts, job.truncate_prompt_tokens, max_model_len)
    longest = max(prompt.tokens for prompt in job.prompts)
    wanted = job.max_tokens if job.max_tokens is not None and job.truncate_prompt_tokens != -1 else 1
    if longest + wanted > max_model_len:
        raise fields.invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {wanted} "
            f"output tokens and your prompt contains at least {longest} input tokens, for a total of at least "
            f"{longest + wanted} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            "input_tokens",
        )
