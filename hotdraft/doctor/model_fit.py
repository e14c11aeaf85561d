"""Whether target and draft go with each other and with the configuration, by their configs and tokenizers alone."""

from collections.abc import Iterator

from hotdraft.doctor.finding import Finding, ok, problem
from hotdraft.doctor.model_files import installed_folder
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import check_same_vocabulary, load_config_of, load_tokenizer
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.models.context_length import check_servable


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
