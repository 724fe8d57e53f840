"""The Modelfile with which Ollama runs a GGUF file."""

from pathlib import Path

from shared.chat import read_templates
from shared.lm.description import read_description
from shared.system.files import write_text

_RAW_TEMPLATE = 'TEMPLATE """{{ .Prompt }}"""'
_CHAT = "# Ollama has a template of its own for the chat template in the GGUF file."


def write_modelfile(folder: Path, gguf: Path) -> None:
    """Write `Modelfile` beside a GGUF file; the model's sampling defaults become parameters.

    Args:
        folder: The model.
        gguf: The file that was made of it.
    """
    model = read_description(folder)
    defaults = model.generation
    parameters = {
        "num_ctx": model.config.context_length,
        "temperature": defaults.temperature,
        "top_p": defaults.top_p,
        "top_k": defaults.top_k or model.config.vocab_size,  # Ollama's own default is 40
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
    }
    template = _RAW_TEMPLATE if read_templates(folder) is None else _CHAT
    lines = [f"FROM ./{gguf.name}", template, *(f"PARAMETER {name} {value}" for name, value in parameters.items())]
    write_text(gguf.with_name("Modelfile"), "\n".join(lines) + "\n")
