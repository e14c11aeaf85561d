"""What a benchmark measures: from what the user asked to settings and prompts that fit each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, load_tokenizer
from hotdraft.pipeline.models.names import cache_folder
from hotdraft.pipeline.system.resources import usable_cores
from hotdraft.pipeline.traffic.generators import arithmetic, varied
from hotdraft.pipeline.traffic.prompts import Prompt, read_traffic
from hotdraft.serving.benchmark.engines.engine import EngineSettings
from hotdraft.serving.benchmark.engines.weights import BENCH_FOLDER, complete_folder
from hotdraft.serving.messages.prompt_encoder import encode_chat

OURS = "hotdraft"
ASSISTED = "transformers-assisted"
ON_ANY_DEVICE = ("transformers", ASSISTED)
PEERS = (*ON_ANY_DEVICE, "openvino", "openvino-int8", "llamacpp")
SHIPPED_DRAFT = (90_000, 20_261)
"""Built-in prompts that it was made from, and their seed."""
SEED = 2026
"""Of the built-in prompts."""


class BenchError(ValueError):
    """A benchmark that cannot be run as asked; the message says what is allowed."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. `prompts` are token ids, the same for every engine."""

    settings: EngineSettings
    against: tuple[str, ...]
    """Of `PEERS`."""
    prompts: list[list[int]]
    max_tokens: int
    repeats: int
    fixed_k: bool = False
    """Also hotdraft with each fixed k."""
    swap: bool = False
    """Also what a stream notices of a swap."""


def make_plan(
    config: HotdraftConfig,
    config_file: Path,
    *,
    against: Sequence[str],
    concurrency: Sequence[int],
    traffic: Path | None,
    prompts: int,
    max_tokens: int,
    repeats: int,
    threads: int | None,
    fixed_k: bool,
    overhead: bool,
    swap: bool,
) -> BenchPlan:
    """Check all that was asked, and write the models where the peers can load them.

    Raises `BenchError`, or what is wrong with the models or the traffic.
    """
    if unknown := sorted(set(against) - set(PEERS)):
        raise BenchError(f"unknown engines {unknown}; allowed are {list(PEERS)}")
    if not concurrency or min(concurrency) < 1:
        raise BenchError(f"requests at once must be whole numbers from 1, not {list(concurrency)}")
    if config.draft is None and (overhead or swap or fixed_k or ASSISTED in against):
        raise BenchError("the configuration names no draft: only plain decoding can be measured")
    device = choose_device(config.device)
    if device.type != "cpu" and (alone := sorted(set(against) - set(ON_ANY_DEVICE))):
        raise BenchError(f"{alone} compute on a CPU here, and the configuration serves on {device}: leave them out")
    dtype = choose_dtype(config.dtype, device)
    tokenizer = load_tokenizer(config.target)
    chosen = read_traffic(traffic)[:prompts] if traffic is not None else builtin_prompts(config, prompts)
    if len(chosen) < max(concurrency):
        raise BenchError(f"{max(concurrency)} requests at once need as many prompts, not {len(chosen)}")
    ids = [list(encode_chat(tokenizer, prompt.messages)) for prompt in chosen]
    longest = max(map(len, ids)) + max_tokens
    if longest > config.engine.max_model_len:
        raise BenchError(f"a prompt and {max_tokens} tokens are {longest}, above engine.max_model_len")
    settings = EngineSettings(
        target_folder=complete_folder(config.target, dtype),
        draft_folder=complete_folder(config.draft, dtype) if config.draft is not None else None,
        dtype=str(dtype).removeprefix("torch."),
        threads=threads or usable_cores(),
        cache_folder=cache_folder() / BENCH_FOLDER,
        concurrency=tuple(concurrency),
        max_length=longest,
        config_file=config_file,
        recording=overhead,
        device=str(device),
    )
    return BenchPlan(settings, tuple(against), ids, max_tokens, repeats, fixed_k, swap)


def builtin_prompts(config: HotdraftConfig, count: int) -> list[Prompt]:
    """Arithmetic and the varied kinds by halves, of those that are `unseen`."""
    halves = zip(arithmetic(2 * count, SEED), varied(2 * count, SEED), strict=True)
    return unseen((prompt for pair in halves for prompt in pair), config)[:count]


def unseen(prompts: Iterable[Prompt], config: HotdraftConfig) -> list[Prompt]:
    """Those that neither the shipped draft learned from nor `hotdraft predistill` would."""
    by_config = (config.predistill.builtin_prompts, config.predistill.seed)
    trained = {str(prompt.messages) for sizes in (SHIPPED_DRAFT, by_config) for prompt in varied(*sizes)}
    return [prompt for prompt in prompts if str(prompt.messages) not in trained]
