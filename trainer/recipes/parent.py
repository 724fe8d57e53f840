"""Option values that `--init` implies: the architecture of the model folder, and how samples are drawn."""

from typing import TYPE_CHECKING

from cyclopts import App, ArgumentCollection

from shared.lm import GenerationDefaults, read_config
from shared.lm.description import check_model_folder
from shared.lm.json_file import read_json
from trainer.components.architecture import architecture_settings, generation_settings
from trainer.settings.file import SettingsFile

if TYPE_CHECKING:
    from pathlib import Path


class ParentOptions:
    """A cyclopts config source that fills the options left open with those of the folder that `--init` names."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill the arguments that are still open (cyclopts calls this).

        Raises:
            ModelFolderError: the folder cannot be read.
        """
        named = {argument.name: argument for argument in arguments if argument.parse}
        init = named.get("--init")
        if init is None or not init.tokens:
            return
        folder: Path = init.convert()
        check_model_folder(folder)
        config = read_config(folder, research=True)
        defaults = GenerationDefaults.from_hf(
            read_json(folder / "generation_config.json", optional=True), eos_token_ids=()
        )
        values = architecture_settings(config) | generation_settings(defaults)
        options = {name for argument in arguments for name in argument.names}
        known = {name: value for name, value in values.items() if f"--{name.replace('_', '-')}" in options}
        SettingsFile(known, f"--init {folder}")(app, commands, arguments)
