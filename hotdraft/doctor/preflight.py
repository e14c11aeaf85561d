"""What would keep `hotdraft serve` from serving, found in a second, before torch is imported."""

from hotdraft.doctor.model_files import examine_configured
from hotdraft.doctor.run_dir import examine_place
from hotdraft.doctor.server import examine_access, examine_port
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import is_to_be_fetched


def check_ready_to_serve(config: HotdraftConfig) -> None:
    """Raise `ConfigError` with all problems, one a line, each with what to do about it.

    Models of which one is to be fetched first are not looked at.
    """
    findings = [
        *examine_port(config, to_serve=True),
        *examine_access(config),
        *examine_place(config),
        *(() if is_to_be_fetched(config.target) else examine_configured(config)),
    ]
    problems = [finding for finding in findings if finding.state == "problem"]
    if problems:
        raise ConfigError("\n".join(f"{one.about}: {one.says}: {one.mend}" for one in problems))
