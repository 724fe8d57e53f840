"""Option values that `--init` implies: the architecture of the model folder, and how samples are drawn."""

from typing import TYPE_CHECKING

from cyclopts import App, ArgumentCollection

from shared.lm import read_description
from trainer.components.architecture import FOLDER_SETTINGS, architecture_settings, generation_settings
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
        options = {name: f"--{name.replace('_', '-')}" for name in FOLDER_SETTINGS}
        left_open = [name for name, option in options.items() if option in named and not named[option].tokens]
        if init is None or not init.tokens or not left_open:
            return  # a run that is resumed has all of them in its file, and needs the folder no more
        folder: Path = init.convert()
        description = read_description(folder, research=True)
        values = architecture_settings(description.config) | generation_settings(description.generation)
        SettingsFile({name: values[name] for name in left_open}, f"--init {folder}")(app, commands, arguments)
