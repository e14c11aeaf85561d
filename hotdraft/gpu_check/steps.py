"""The steps of a check, in their order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Of a function of `checks` that makes a `Found` of a plan; it runs in a process of its own."""

    name: str
    function: str
    """Module and name."""
    share: float
    """Of the time that is left, against those of the steps from here on."""
    shows: str
    needs: tuple[str, ...] = ()
    """Packages without which it is left out."""
    needs_on_gpu: tuple[str, ...] = ()


_CONFIGURED = ("pydantic_settings", "yaml")
_LEARNING = (*_CONFIGURED, "lightning", "peft", "mlflow", "datasets")

STEPS = (
    Step(
        "machine",
        "machine.check",
        1,
        "the device: how fast it reads, how long a launch and a wait take, what packages are there",
    ),
    Step("pair", "pair.check", 5, "the models that all that follows is tried with"),
    Step("lossless", "lossless.check", 3, "greedy tokens with and without drafting, and transformers' own"),
    Step("distributions", "distributions.check", 2, "tokens drawn at random against the target's probabilities"),
    Step(
        "rounds",
        "rounds.check",
        5,
        "rounds with graphs against rounds without: the same tokens, and what each costs",
    ),
    Step(
        "speed",
        "speed.one_at_a_time",
        12,
        "tokens a second beside transformers, one request at a time",
        _CONFIGURED,
    ),
    Step("batches", "speed.batches", 9, "the same with several requests at once", _CONFIGURED),
    Step("swaps", "swaps.check", 3, "adapters that are swapped under a running stream", _CONFIGURED),
    Step(
        "training",
        "training.check",
        10,
        "a job of QLoRA on what was recorded, and its adapter swapped in",
        _LEARNING,
        ("bitsandbytes",),
    ),
    Step(
        "sharing",
        "sharing.check",
        10,
        "serving while a job trains on the same device",
        _LEARNING,
        ("bitsandbytes",),
    ),
)
