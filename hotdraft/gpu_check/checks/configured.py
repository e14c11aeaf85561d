"""What the parts of hotdraft above the decoder are checked with: a configuration, prompts, a job."""

import json
from pathlib import Path
from typing import Any

from hotdraft.gpu_check.plan import DRAFTED, CheckPlan, Pair
from hotdraft.llm import LLM
from hotdraft.pipeline.traffic.generators import arithmetic

SEED = 17
MAX_MODEL_LEN = 768
STEPS, STEPS_ON_GPU = 10, 100


def write_config(plan: CheckPlan, pair: Pair, name: str) -> Path:
    """A file of that name in the folder of work; a folder of that name takes what is recorded and learned."""
    path = plan.folder / f"{name}.yaml"
    content = {
        "target": pair.target,
        "draft": pair.draft,
        "device": plan.device,
        "run_dir": str(plan.folder / name),
        "engine": _engine(plan),
        "replay": {"url": str(recorded(plan))},
        "distill": {
            "quantization": "nf4",
            "max_seconds": None,
            "max_steps": STEPS_ON_GPU if plan.on_gpu else STEPS,
            "memory_fraction": 0.4,
        },
    }
    path.write_text(json.dumps(content))  # which YAML takes
    return path


def recorded(plan: CheckPlan) -> Path:
    """Folder of the replay buffer that the step `training` fills."""
    return plan.folder / "replay"


def served(plan: CheckPlan, pair: Pair) -> LLM:
    """The pair in this process, with a slot for each of the most requests at once."""
    return LLM(pair.target, pair.draft, device=plan.device, **_engine(plan))


def _engine(plan: CheckPlan) -> dict[str, Any]:
    return {"num_slots": max(plan.rows), "max_model_len": MAX_MODEL_LEN, "max_k": DRAFTED, "k": DRAFTED}


def conversations(count: int, seed: int = SEED) -> list[list[dict[str, str]]]:
    return [prompt.messages for prompt in arithmetic(count, seed)]
