"""What a step of training takes here: it is tried on the real draft and device, before hours of recording."""

import re
import resource
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.loading import choose_device, load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.system.disk import nearest_folder
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.drafts.draft_init import make_draft
from hotdraft.training.fit.processes import TrainingProcessError, check_devices, strategy_of
from hotdraft.training.fit.progress_bar import Throughput, quiet_trainer
from hotdraft.training.fit.run import FitOptions, RunPlace, train
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan, Run
from hotdraft.training.planning.plan_check import check_step
from hotdraft.training.planning.plan_time import Step
from hotdraft.training.predistill.train_draft import fit_in_processes
from hotdraft.training.scoring.target_reader import give_target
from hotdraft.training.scoring.target_scores import ScoredText, score

TRIAL = {
    "max_steps": 2,
    "checkpoint_steps": 2,
    "max_seconds": None,
    "validation_requests": 0,
    "layer_choice": "even",
}
"""AdamW's state comes with the first step, and only the second has all that a step has beside it; a checkpoint is
written too. Which layers are chosen makes no difference, and importance takes text."""
FOLDER = "hotdraft-trial-"
OUT_OF_MEMORY = re.compile("OutOfMemoryError|MemoryError|DefaultCPUAllocator|SIGKILL")
"""In what is left of a process: torch's words on a GPU, Python's, torch's on a CPU, and Linux's deed."""
OWN_STATUS = Path("/proc/self/status")


def try_step(plan: MemoryPlan, available: Available, texts: Sequence[ScoredText]) -> Step:
    """A step on as many of `texts` as fill a batch, measured in processes of its own, as many as will train.

    Raises `PlanError` if it does not fit what is `available`, `DeviceError`, `ModelError`, `DataError` without
    a text that can be trained on, and `TrainingProcessError`.
    """
    run, settings = plan.run, plan.run.settings.model_copy(update=TRIAL)
    device = choose_device(run.config.device)
    check_devices(settings, device, run.dtype)
    with tempfile.TemporaryDirectory(prefix=FOLDER, dir=nearest_folder(run.config.run_dir)) as folder:
        buffer = ReplayBuffer(f"{folder}/replay")
        draft = _prepare(run, settings, texts, buffer)
        torch.cuda.empty_cache()
        data = ReplayDataModule.for_predistill(buffer.load(), settings, held_out_fraction=0.0)
        place = RunPlace(run.config.tracking_uri, None, Path(folder, "checkpoints"), progress=False)
        fit = partial(_fit, data=data, settings=settings, place=place)
        try:
            measured = fit_in_processes(draft, settings, fit, place.checkpoints, device)
        except TrainingProcessError as error:
            if OUT_OF_MEMORY.search(str(error)):
                check_step(plan, available, None)
            raise
    step = Step(measured["tokens_per_second"], int(measured["peak"]))
    check_step(plan, available, step.peak)
    return step


def clear_trials(run_dir: Path) -> None:
    """Delete what killed ones left in `run_dir`, checkpoints of the draft; none may be under way there."""
    for folder in run_dir.glob(f"{FOLDER}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(
    run: Run, settings: PredistillConfig, texts: Sequence[ScoredText], buffer: ReplayBuffer
) -> PreTrainedModel:
    """The draft, on the CPU so that it takes no room from what trains; a batch goes to `buffer`."""
    target = load_causal_lm(run.config.target, dtype=run.dtype, device=choose_device(run.config.device))
    draft, _ = make_draft(target, settings)
    ends = np.cumsum([len(text.prompt_ids) + len(text.output_ids) - 1 for text in texts])
    batch = texts[: max(1, int(np.searchsorted(ends, settings.batch_tokens, side="right")))]
    vocab_size = min(model.config.get_text_config().vocab_size for model in (target, draft))
    buffer.append([*score(target, batch, run.config.recorder.top_k, settings.batch_tokens, vocab_size)])
    draft = draft.cpu()
    give_target(draft, run.config.target)
    return draft


def _fit(
    model: PreTrainedModel | PeftModel,
    compute: torch.dtype,
    *,
    data: ReplayDataModule,
    settings: PredistillConfig,
    place: RunPlace,
) -> dict[str, float]:
    quiet_trainer()
    throughput = Throughput(every_steps=1)
    strategy = strategy_of(settings)
    options = FitOptions(compute, processes=settings.devices, strategy=strategy, throughput=throughput)
    train(model, data, settings, place, options)
    device = next(model.parameters()).device
    return {"tokens_per_second": throughput.latest / settings.devices, "peak": float(peak_bytes(device))}


def peak_bytes(device: torch.device) -> int:
    """The most that this process has held: of tensors on a GPU, in the machine's memory otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if OWN_STATUS.is_file():  # on Linux `getrusage` begins with the peak of the process that started this one
        [peak] = (line.split()[1] for line in OWN_STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(peak)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
