"""Validation loss and samples of a model in training. Neither changes the training."""

import logging
from dataclasses import replace

from shared.lm import GenerationDefaults, SamplingError, Transformer
from shared.lm.folder import valid_token_mask
from trainer.compute.device import Device
from trainer.compute.parallel import full_model
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.errors import UsageError
from trainer.evaluation.sampling import encode_prompt, sample_text
from trainer.evaluation.validation import Evaluation, evaluate_windows, token_byte_lengths
from trainer.evaluation.windows import consecutive_windows, conversation_windows
from trainer.settings.train import TrainSettings
from trainer.tokens.dataset import TrainingData

logger = logging.getLogger(__name__)


class Watcher:
    """Evaluates a model in training, and draws samples from it.

    Attributes:
        generation: How samples are drawn.

    Raises on construction what `encode_prompt` raises, and UsageError where an evaluation would count no token.
    """

    def __init__(
        self,
        model: Transformer,
        data: TrainingData,
        settings: TrainSettings,
        device: Device,
        processes: Processes = ONE_PROCESS,
        *,
        generation: GenerationDefaults | None = None,
    ) -> None:
        """`generation`: that of the model that the run starts from, if there is one."""
        watch = settings.watch
        self._prompt: list[int] = []
        if 0 < watch.sample_interval < settings.optimization.max_steps:  # else it is never used, and may be too long
            self._prompt = encode_prompt(data.tokenizer, watch.sample_prompt, settings.model.context_length)
        self._model, self._data, self._settings = model, data, settings
        self._device, self._processes = device, processes
        self._check_answers()
        if generation is None:
            end = data.tokenizer.end_of_text_id
            ends = () if end is None else (end,)
            generation = GenerationDefaults(temperature=watch.temperature, top_p=watch.top_p, eos_token_ids=ends)
        if data.end_of_turn_id is not None and data.end_of_turn_id not in generation.eos_token_ids:
            generation = replace(generation, eos_token_ids=(*generation.eos_token_ids, data.end_of_turn_id))
        self.generation = generation
        self._valid_tokens = valid_token_mask(data.tokenizer, model.config)
        self._byte_lengths = token_byte_lengths(data.tokenizer, self._valid_tokens)

    def _check_answers(self) -> None:
        file, count = self._data.validation, self._settings.watch.eval_tokens
        if file is None or not file.manifest.has_mask:
            return
        if not any(mask.any() for _, mask in file.masked_blocks(count or None)):
            raise UsageError(
                f"--eval-tokens ({count}) covers no answer in the validation tokens: give more, or 0 for all"
            )

    def evaluate(self) -> Evaluation | None:
        """Score the validation tokens, where there are any."""
        file = self._data.validation
        if file is None:
            return None
        limit, length = self._settings.watch.eval_tokens or None, self._settings.model.context_length
        end_id = file.manifest.end_of_text_id
        if not file.manifest.has_mask:
            windows = consecutive_windows(file.blocks(limit), length, begin_id=end_id)
        else:
            windows = conversation_windows(file.masked_blocks(limit), end_id, length)
        return evaluate_windows(
            full_model(self._model),
            windows,
            self._byte_lengths,
            batch_size=self._settings.optimization.batch_size,
            device=self._device,
            processes=self._processes,
        )

    def sample(self) -> str | None:
        """What the model writes at this step, with the same seed each time, so that samples are comparable.

        None in ranks other than 0, and where probabilities are NaN: then the loss of the next step will be, too, and
        count as divergence.
        """
        model = full_model(self._model)
        if not self._processes.is_first:
            return None
        watch = self._settings.watch
        pieces = sample_text(
            model,
            self._data.tokenizer,
            self._prompt,
            self.generation.params(seed=self._settings.optimization.seed),
            max_tokens=watch.sample_tokens,
            eos_token_ids=self.generation.eos_token_ids,
            valid_tokens=self._valid_tokens,
        )
        try:
            return watch.sample_prompt + "".join(pieces)
        except SamplingError as error:
            logger.warning("no sample: %s", error)
            return None
