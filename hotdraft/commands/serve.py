"""`hotdraft serve`: the OpenAI-compatible server, with the loop beside it if asked."""

from typing import Annotated

import typer

from hotdraft.commands.options import ConfigOption, DtypeOption, HostOption, KOption, PortOption, serving_overrides


def serve(
    config: ConfigOption,
    host: HostOption = None,
    port: PortOption = None,
    dtype: DtypeOption = None,
    k: KOption = None,
    self_improve: Annotated[
        bool, typer.Option("--self-improve", help="Run the trainer beside the server and serve what it improves.")
    ] = False,
) -> None:
    """Serve the target, sped up by the draft; record what the draft got wrong.

    Examples:
    $ hotdraft serve --config configs/smollm2.yaml --self-improve
    $ hotdraft serve --config configs/smollm2.yaml --host 0.0.0.0 --port 9000
    $ HOTDRAFT_ENGINE__NUM_SLOTS=16 hotdraft serve -c configs/smollm2.yaml --k 3
    """
    from hotdraft.pipeline.config.settings import load_config

    overrides = serving_overrides(host, port, dtype, k)
    settings = load_config(config, overrides)

    from hotdraft.serving.service import serve as run

    run(settings, config_path=config, overrides=overrides, self_improve=self_improve)
