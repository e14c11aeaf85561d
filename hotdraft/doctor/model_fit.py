"""Whether target and draft go with each other and with the configuration, by their configs and tokenizers alone."""

from collections.abc import Iterator

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import check_same_vocabulary, load_config_of, load_tokenizer
from hotdraft.pipeline.models.names import ModelError, installed_folder
from hotdraft.serving.models.context_length import check_servable
from hotdraft.training.drafts.model_size import meta_model


def examine_fit(config: HotdraftConfig) -> Iterator[Finding]:
    """Nothing of models that are not here: others say so."""
    names = [name for name in (config.target, config.draft) if name is not None]
    try:
        folders = [installed_folder(name) for name in names]
    except ModelError:
        return
    present = [folder for folder in folders if folder is not None and (folder / "config.json").is_file()]
    if len(present) == len(names):
        yield _limits(config, names)
        if config.draft is not None:
            yield _vocabulary(config.target, config.draft)
            yield _adapter(config.draft, config.distill.lora.target_modules)


def _limits(config: HotdraftConfig, names: list[str]) -> Finding:
    try:
        models = [(name, load_config_of(name)) for name in names]
        check_servable(models[0], models[1] if len(models) > 1 else None, config.engine)
    except ModelError as error:
        return problem("limits", str(error), "change the configuration as it says, or name another model")
    return ok("limits", f"the models go with engine.max_model_len {config.engine.max_model_len}")


def _vocabulary(target: str, draft: str) -> Finding:
    try:
        tokenizers = load_tokenizer(target), load_tokenizer(draft)
        check_same_vocabulary(target, tokenizers[0], draft, tokenizers[1])
    except ModelError as error:
        return problem("vocabulary", str(error), "choose a draft of the target's family, or make one: "
                       "`hotdraft predistill --config FILE --out FOLDER`")  # fmt: skip
    return ok("vocabulary", f"target and draft share {len(tokenizers[0].get_vocab()):,} tokens")


def _adapter(draft: str, layers: str | list[str]) -> Finding:
    """By a model without weights. One that cannot learn serves all the same; layers named in vain help nobody."""
    from hotdraft.training.fit.lora import LoraError, target_modules  # PEFT, which may be what is missing

    try:
        found = target_modules(meta_model(load_config_of(draft)), layers)
    except ModelError as error:
        return problem("adapter", str(error), "name another model under `draft:`")
    except LoraError as error:
        if layers == "all-linear":
            return warning("adapter", f"{draft} never learns: {error}", "name another model under `draft:`")
        return problem("adapter", str(error), "change distill.lora.target_modules, or leave it out")
    return ok("adapter", f"the draft learns in {', '.join(found)}")
