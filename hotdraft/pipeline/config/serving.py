"""The sections of what serves: server, engine, recorder."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from hotdraft.pipeline.config.section import LocalPath, Section, Threads

MOST_DRAFTED = 16
KSetting = Annotated[int, Field(ge=0, le=MOST_DRAFTED)] | Literal["auto"]
"""Drafted tokens a round, or what is fastest at the moment."""


def _by_comma(value: Any) -> Any:
    """A list, or a text that has one by comma. An empty text is a mistake, and no way to ask for an empty list."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()] or [""]
    if not isinstance(value, list):
        return value
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError("holds an empty text; to have none, leave the key out")
    return items


Keys = Annotated[list[SecretStr], BeforeValidator(_by_comma), NoDecode]


Names = Annotated[list[str], BeforeValidator(_by_comma), NoDecode]


Proposers = Annotated[list[Literal["draft", "suffix"]], BeforeValidator(_by_comma), NoDecode]


class ServerConfig(Section):
    host: str = Field("127.0.0.1", description="address to listen at; 0.0.0.0 for all of this machine")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen at; 0 takes one that is free")
    served_model_name: Annotated[str, Field(min_length=1)] | None = None
    """Name clients use for the model; the target's name by default."""
    api_keys: Keys = Field(
        [], description="any of which /v1 asks for; by comma in the environment; none: open to everybody"
    )
    api_key_file: LocalPath | None = Field(None, description="file with more keys, one a line")
    admin_keys: Keys = Field(
        [], description="any of which /admin asks for, and which open /v1 too; none: the API keys open both"
    )
    admin_key_file: LocalPath | None = Field(None, description="file with more of them, one a line")
    open_admin: bool = Field(
        False, description="serve /admin without an admin key though other machines can reach this server"
    )
    allowed_hosts: Names = Field(
        [],
        description="names that clients may call this server by, beside localhost, IP addresses, `host` and the "
        "machine's own; `*.example.com` is all below it, `*` every name",
    )
    max_connections: int = Field(
        2000, ge=1, description="open at once; fewer where the process may not open as many files"
    )
    header_seconds: float = Field(10.0, gt=0, description="that a client has to send the headers of a request in")
    body_seconds: float = Field(
        60.0, gt=0, description="that it has for the body, and to go on reading an answer once it stopped"
    )
    max_body_bytes: int = Field(2_000_000, ge=1, description="of a request's body, above which it is refused")
    drain_seconds: float = Field(
        25.0, ge=0, description="that accepted requests have to finish in after SIGTERM, before they are cancelled"
    )
    sampling_defaults: Literal["model", "neutral"] = Field(
        "model",
        description="for what a request leaves out: as the target's generation_config.json says, or temperature 1 "
        "and no filters",
    )
    log_format: Literal["text", "json"] = Field("text", description="lines for people, or JSON for machines")
    log_requests: bool = Field(
        False, description="log a line for each HTTP request too; answers have one with their numbers either way"
    )


class VllmConfig(Section):
    self_improve: bool = Field(False, description="run the trainer beside vLLM, as `--self-improve` does")
    reset_prefix_cache: bool = Field(
        False,
        description="forget vLLM's cached prefixes after a swap, the draft's old keys and the target's",
    )
    runner: Literal["auto", "v1", "v2"] = Field(
        "auto",
        description="vLLM's model runner: v1 has CUDA graphs of the draft, v2 does not; auto is vLLM's choice",
    )


class EngineConfig(Section):
    kind: Literal["hotdraft", "vllm"] = Field(
        "hotdraft", description="what decodes: hotdraft's own engine, or a vLLM that is installed beside it"
    )
    k: KSetting = Field(
        "auto", description="drafted tokens a round; 0 is plain decoding, auto what is fastest at the moment"
    )
    max_k: int = Field(8, ge=1, le=MOST_DRAFTED, description="largest k that auto chooses")
    proposers: Proposers = Field(
        ["draft", "suffix"],
        description="that auto chooses among, request by request: the draft model, and what followed when the same "
        "tokens came before in the request's own text or in recent answers; another k is the draft model's alone",
    )
    max_alternatives: int = Field(
        4,
        ge=0,
        le=16,
        description="second choices of the draft that the target reads beside what was drafted, at most; auto "
        "takes as many as pay",
    )
    max_guess: int = Field(24, ge=1, le=32, description="most tokens guessed from text in a round")
    text_memory_mb: int = Field(32, ge=1, le=100_000, description="MB of recent answers kept to guess from")
    share_answers: bool = Field(
        False,
        description="guess from answers to requests with other API keys too, and copy what was read of their "
        "prompts: speed may then tell of them",
    )
    draft_vocab_size: int | None = Field(
        None, ge=16, description="most frequent tokens that the draft's output head covers; all if unset"
    )
    draft_window: int | None = Field(
        None,
        ge=64,
        description="tokens that the draft reads of a prompt of more than twice as many: the last ones, and the "
        "last ones anew each time that it holds three times as many; all if unset",
    )
    num_slots: int = Field(8, ge=1, le=65536, description="requests decoded together")
    max_model_len: int = Field(1024, ge=8, description="prompt and output tokens of one request, at most")
    max_queue: int = Field(
        1024,
        ge=1,
        description="requests that may wait for a slot before 503; up to twice as many where some are of clients "
        "that have less than an even share",
    )
    prefill_chunk: int = Field(256, ge=1, description="prompt tokens processed between two rounds, at most")
    reuse_prefixes: bool = Field(
        True,
        description="copy what another request has read of the same beginning; of another key's or salt's none",
    )
    threads: Threads = Field(
        None, description="CPU threads of the decoder; torch's default if unset, within what a container may use"
    )
    enforce_eager: bool = Field(
        False,
        description="launch operations one by one on a GPU too, where recurring forwards are CUDA graphs else",
    )
    draft_weights: Literal["auto", "dtype", "int8"] = Field(
        "auto",
        description="as `dtype` says, or 8 bits each, which change acceptance alone; auto takes 8 bits in a "
        "bfloat16 server where the processor computes with them",
    )
    target_weights: Literal["dtype", "int8"] = Field(
        "dtype",
        description="as `dtype` says, or 8 bits each: answers are those of the rounded model then",
    )
    instructions: Literal["auto", "amx", "avx512_bf16", "avx512", "avx2", "none"] = Field(
        "auto",
        description="that the native library computes with, of those that the processor has; none leaves the "
        "library out, and torch computes",
    )

    @property
    def served_window(self) -> int | None:
        """What the draft reads where it serves: vLLM's reads all."""
        return self.draft_window if self.kind == "hotdraft" else None

    @property
    def guesses(self) -> bool:
        """Whether tokens are guessed from text."""
        return self.k == "auto" and "suffix" in self.proposers

    @property
    def most_proposed(self) -> int:
        """Tokens that a round may propose for a request, at most."""
        return max(self.largest_k, self.max_guess if self.guesses else 0)

    @property
    def largest_k(self) -> int:
        """What k may be set to while serving, at most."""
        return self.max_k if self.k == "auto" else self.k


class RecorderConfig(Section):
    enabled: bool = Field(True, description="record requests to learn from")
    sample_rate: float = Field(1.0, gt=0, le=1, description="share of them that is recorded")
    top_k: int = Field(64, ge=1, description="target log-probs kept per output position")
    states_mb: int = Field(
        512,
        ge=0,
        description="of what the target's layers made of the newest recorded requests, in `<run_dir>/states`, for "
        "a draft that learns to read it, see docs/drafts.md",
    )
    queue_size: int = Field(
        1024, ge=1, description="finished requests waiting to be written, of 256 MB at most; more are dropped"
    )
    shard_requests: int = Field(16, ge=1, description="requests in a shard, at most, unless the queue is half full")
    flush_seconds: float = Field(2.0, gt=0, le=3600, description="age at which an unfinished shard is written")
