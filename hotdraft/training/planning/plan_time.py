"""How long a pre-distillation takes at the speeds that were measured."""

from dataclasses import dataclass

from hotdraft.training.planning.memory_plan import MemoryPlan


@dataclass(frozen=True)
class Step:
    """A training step, measured."""

    tokens_per_second: float
    """Of one device."""
    peak: int
    """Bytes that one process held."""


def describe_time(plan: MemoryPlan, step: Step | None = None, answer_tokens_per_second: float | None = None) -> str:
    """How long it is from the start to the end of what was measured, every answer as long as it may be; a line."""
    run, hours = plan.run, {}
    if answer_tokens_per_second is not None:
        stage = f"for the answers at {answer_tokens_per_second:,.0f} tokens/s"
        hours[stage] = run.answer_tokens / answer_tokens_per_second / 3600
    if step is not None:
        seconds = run.train_tokens / step.tokens_per_second
        stage = f"for training at {step.tokens_per_second:,.0f} tokens/s, {step.peak / 1e9:.2f} GB at its peak"
        hours[stage] = min(seconds, run.settings.max_seconds or seconds) / 3600
    total = f"{_long(sum(hours.values()))}: " if len(hours) > 1 else ""
    told = ", ".join(f"{_long(number)} {stage}" for stage, number in hours.items())
    told = f"{total}{told}" if told else "not measured, which takes the device and the weights"
    tokens = f"{millions(run.recorded_tokens)} tokens to record at most, {millions(run.train_tokens)} to train on"
    return f"Time: {told}; {tokens}"


def millions(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _long(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
