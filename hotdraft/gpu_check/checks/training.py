"""The step `training`: what the target answers is recorded, a job learns from it, and its adapter is swapped in."""

from statistics import fmean

from hotdraft.distillation import distill
from hotdraft.gpu_check.checks.configured import conversations, recorded, served, write_config
from hotdraft.gpu_check.plan import CheckPlan, Found, Pair
from hotdraft.outputs import RequestOutput
from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.messages.request import SamplingParams

REQUESTS, UNSEEN = 64, 16
ANSWER = SamplingParams(temperature=0, max_tokens=64)


def check(plan: CheckPlan) -> Found:
    pair, found = Pair.read(plan), Found()
    config = load_config(write_config(plan, pair, "training"))
    buffer = ReplayBuffer(str(recorded(plan)))
    with served(plan, pair) as llm:
        llm.record_to(buffer)
        llm.chat(conversations(REQUESTS), ANSWER)
        llm.record_to(None)
        unseen = conversations(UNSEEN, seed=99)
        before = llm.chat(unseen, ANSWER)
        told = config.distill.model_dump(include={"quantization", "max_seconds", "max_steps"})
        result = distill(pair.target, pair.draft, buffer, run_dir=config.run_dir, device=plan.device, **told)
        found.figures |= {
            "requests": REQUESTS,
            "recorded tokens": buffer.stats().output_tokens,
            "verdict": f"{'accepted' if result.accepted else 'rejected'}: {result.reason}",
            "accepted before": _accepted(before),
            **{name.replace("_", " "): value for name, value in result.metrics.items() if name in SHOWN},
        }
        if result.adapter is None:
            found.wrong.append(f"no adapter was fit to publish: {result.reason}")
            return found
        llm.swap(result.adapter)
        found.figures["accepted with the adapter"] = _accepted(llm.chat(unseen, ANSWER))
    return found


SHOWN = ("steps", "final_loss", "champion_expected_acceptance", "candidate_expected_acceptance", "train_seconds")


def _accepted(answers: list[RequestOutput]) -> float:
    """The mean over requests."""
    return fmean(one.acceptance_rate for one in answers if one.acceptance_rate is not None)
