"""Python interface to a trained translation or causal language model.

It extends fairseq's generator hub by input checks, alignments, documents and long texts.
"""

import os
import tempfile
from argparse import Namespace
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Type

import torch
from torch import Tensor

from fairseq import hub_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.token_generation_constraints import pack_constraints
from luna_fairseq.checks.names import check_overrides, suggest_name
from luna_fairseq.checks.options import SOURCE_OPTIONS, ParsedOptions, check_int8_precision, check_shortlist
from luna_fairseq.errors import InputError
from luna_fairseq.models.document_translation import translate_document
from luna_fairseq.models.ema import write_ema
from luna_fairseq.models.stream import Stream
from luna_fairseq.models.tokenizers import (
    find_folders,
    find_text_pipeline,
    find_tokenizer,
    set_languages,
    tokenizer_options,
)
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.pieces import check_encoded, check_tokenizer

# Arguments of fairseq's from_pretrained that are not options of a training.
_ARGUMENTS_OF_LOADING = ("user_dir", "generation_args", "load_checkpoint_heads", "archive_map")


class GeneratorHub(hub_utils.GeneratorHubInterface):
    """Interface to a trained translation model, which takes and returns plain text.

    :func:`from_pretrained` returns it.

    Args:
        cfg: configuration of the training run.
        task: fairseq task of the training run.
        models: list of models, decoded as an ensemble.

    Raises:
        InputError: The tokenizer does not fit the dictionaries.

    Example::

        hub = LunaModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        hub.translate("Guten Morgen!", beam=5)
    """

    bpe: Any  # the subword tokenizer, for which fairseq declares no type
    # Class of the models that this interface accepts, and its name in messages.
    supports: Tuple[Type[Any], str] = (FairseqEncoderDecoderModel, "translation model")
    translate_document = translate_document
    is_limited_by_source = True

    def __init__(self, cfg: Any, task: Any, models: Any):
        set_languages(cfg.tokenizer, task)
        super().__init__(cfg, task, models)
        check_tokenizer(self.bpe, self.src_dict, self.tgt_dict)
        # fairseq disables attention weights on loading, but translate(..., print_alignment=...) needs them.
        for module in self.modules():
            if hasattr(module, "need_attn"):
                module.need_attn = True

    def apply_bpe(self, sentence: str) -> str:
        """Split a text into subwords.

        Args:
            sentence: text after :meth:`tokenize`.

        Returns:
            Subwords, separated by spaces.

        Raises:
            InputError: The hub has no subword tokenizer, and the text is not split into subwords yet.
        """
        if self.bpe is None:
            check_encoded(sentence, self.src_dict)
        return super().apply_bpe(sentence)

    def generate(
        self, tokenized_sentences: Any, beam: int = 5, *args: Any, constraints: Any = None, **kwargs: Any
    ) -> Any:
        """Translate encoded sentences with beam search, optionally with lexical constraints.

        Overrides fairseq's ``GeneratorHubInterface.generate``. A translation has at most 1.5 times as many
        tokens as its source, plus 20, unless ``max_len_a``, ``max_len_b`` or ``min_len`` is given. Sentences
        with constraints are translated one by one, without this limit.

        Args:
            tokenized_sentences: token indices of a sentence, or a list of them.
            beam: beam size (default: 5).
            args: further positional arguments of fairseq's ``generate``.
            constraints: for each sentence, a list of phrases that the translation must contain in this order,
                as plain text (default: None, no constraints).
            kwargs: options of generation, such as ``lenpen``.

        Returns:
            For each sentence, the list of hypotheses, best first. A single sentence gives a single list.

        Raises:
            InputError: The numbers of constraints and sentences differ; ``print_alignment`` is set, but the
                model has no weights to align with; or an option is unknown or has an invalid value.
        """
        arguments = signature(hub_utils.GeneratorHubInterface.generate).parameters
        known = {*GenerationConfig.__dataclass_fields__, *arguments}
        for name in kwargs.keys() - known:
            raise InputError(f"generation has no option {name}{suggest_name(name, known)}")
        if beam < 1:
            raise InputError(f"beam {beam}: must be at least 1")
        for model in self.models:
            if hasattr(model, "check_generation"):
                model.check_generation(Namespace(**kwargs))
        if not isinstance(tokenized_sentences, Tensor) and not len(tokenized_sentences):
            return []
        if constraints is None:
            kwargs = {**self._length_limits(kwargs), **kwargs}
            return super().generate(tokenized_sentences, beam, *args, **kwargs)
        if isinstance(tokenized_sentences, Tensor):
            return self.generate([tokenized_sentences], beam, *args, constraints=[constraints], **kwargs)[0]
        if len(constraints) != len(tokenized_sentences):
            raise InputError(
                f"expected constraints for {len(tokenized_sentences)} sentences, got {len(constraints)}: "
                "pass a list of phrases for each sentence"
            )
        results = []
        for tokens, phrases in zip(tokenized_sentences, constraints):
            texts = [phrases] if isinstance(phrases, str) else phrases
            phrase_tokens = [self._encode_target(text) for text in texts]
            packed = pack_constraints([phrase_tokens]).to(self.device)
            options = {**kwargs, "constraints": "ordered", "inference_step_args": {"constraints": packed}}
            results += super().generate([tokens], beam, *args, **options)
        return results

    def _length_limits(self, options: Mapping[str, Any]) -> Dict[str, Any]:
        """Return default options that limit the length of translations.

        Args:
            options: generation options of this call. Options that were given when the model was loaded are
                read from the configuration.

        Returns:
            Options ``{name: value}``; an empty dictionary if the user has set a limit or the model has no
            source.
        """
        if not self.is_limited_by_source:
            return {}
        loaded, defaults = self.cfg.generation, GenerationConfig()
        changed = {name: loaded[name] for name in loaded if loaded[name] != getattr(defaults, name, None)}
        return limits_by_source({**changed, **options})

    def _encode_target(self, text: str) -> Tensor:
        """Encode a text in the target language as token indices, without the end-of-sentence token.

        Args:
            text: plain text.

        Returns:
            Token indices [length].
        """
        encoded = self.apply_bpe(self.tokenize(text))
        return self.tgt_dict.encode_line(encoded, append_eos=False, add_if_not_exist=False).long()


class LanguageModelHub(GeneratorHub):
    """Interface to a trained causal language model, which can continue a text of any length.

    Example::

        hub = LunaLanguageModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        stream = hub.read("Call me Ishmael.")
        hub.sample("Some years ago", stream=stream, sampling=True)
    """

    SEGMENT = 512  # number of tokens that read() passes to the model at once
    supports = FairseqLanguageModel, "causal language model"
    is_limited_by_source = False

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Continue encoded texts with beam search or sampling.

        Args:
            args: positional arguments of :meth:`GeneratorHub.generate`.
            kwargs: keyword arguments of :meth:`GeneratorHub.generate`.

        Returns:
            For each text, the list of hypotheses, best first.

        Raises:
            InputError: An option such as ``print_alignment`` or ``constraints`` is set, which needs a source.
        """
        for name in SOURCE_OPTIONS:
            if kwargs.get(name) not in (None, False):
                raise InputError(f"{name} is for translation, a language model has no source: remove it")
        return super().generate(*args, **kwargs)

    @torch.no_grad()
    def read(self, text: str, stream: Optional[Stream] = None) -> Stream:
        """Feed a line of text to the model, and return the state of the model after the line.

        Args:
            text: one line of plain text.
            stream: state after the preceding lines, updated in place (default: None, the text starts here).

        Returns:
            The state, which :meth:`sample` and further calls of :meth:`read` continue from.

        Raises:
            InputError: The hub holds several models.
        """
        model, stream = self._get_only_model(), Stream() if stream is None else stream
        tokens = self.encode(text).to(self.device)
        # The input is shifted right by one token, and a line begins with the end token.
        shifted = torch.cat([tokens[-1:], tokens[:-1]])[None]
        for segment in shifted.split(self.SEGMENT, dim=1):
            model(segment, stream=stream)
        return stream

    def sample(
        self,
        sentences: Any,
        beam: int = 1,
        verbose: bool = False,
        stream: Optional[Stream] = None,
        **kwargs: Any,
    ) -> Any:
        """Generate continuations of texts.

        Extends fairseq's ``GeneratorHubInterface.sample`` by ``stream``.

        Args:
            sentences: a text, or a list of texts.
            beam: beam size (default: 1).
            verbose: print the hypotheses (default: False).
            stream: state returned by :meth:`read`, not changed here. Each of the texts then continues the
                text that was read (default: None, no earlier text).
            kwargs: options of generation, such as ``sampling``.

        Returns:
            For each text, the text with its best continuation. A single text gives a single string.

        Raises:
            InputError: A stream is given, but the hub holds several models.
        """
        if stream is None or isinstance(sentences, str):  # for a text, fairseq calls this method again
            options = kwargs if stream is None else {**kwargs, "stream": stream}
            return super().sample(sentences, beam, verbose, **options)
        decoder = self._get_only_model().decoder
        decoder.begin_from = stream.repeat
        try:
            return super().sample(sentences, beam, verbose, **kwargs)
        finally:
            decoder.begin_from = None

    def _get_only_model(self) -> Any:
        """Return the model of this hub.

        Raises:
            InputError: The hub holds several models.
        """
        if len(self.models) > 1:
            raise InputError("a stream is the state of one model: load one checkpoint, not several")
        return self.models[0]


@contextmanager
def _folder_of_averages(folder: Path, names: str) -> Iterator[str]:
    """Context manager that writes checkpoints with averaged weights to a temporary folder.

    The moving average of ``fairseq-train --store-ema`` replaces the trained weights. File names stay the
    same.

    Args:
        folder: folder of the checkpoints.
        names: file names, separated by ``:`` as in fairseq (``;`` on Windows).

    Yields:
        Path of the temporary folder.

    Raises:
        InputError: A checkpoint has no averaged weights.
    """
    with tempfile.TemporaryDirectory() as temporary:
        for name in names.split(os.pathsep):
            write_ema(folder / name, Path(temporary) / name)
        yield temporary


def from_pretrained(
    model_name_or_path: str,
    checkpoint_file: str = "model.pt",
    data_name_or_path: str = ".",
    *,
    hub: Type[Any] = GeneratorHub,
    ema: bool = False,
    **kwargs: Any,
) -> Any:
    """Load a trained model with its dictionaries and its tokenizer.

    Without ``bpe``, the tokenizer is chosen by its files in the folder of the checkpoint or of the
    dictionaries: ``sentencepiece.bpe.model``, ``encoder.json`` and ``vocab.bpe`` of GPT-2, or ``bpe.codes``
    of text that was tokenised by Moses. Without such files, texts must already consist of words or subwords,
    separated by spaces.

    Args:
        model_name_or_path: folder of the checkpoint.
        checkpoint_file: name of the checkpoint; several names are separated by ``:`` (default: model.pt).
        data_name_or_path: folder of the dictionaries. A path that starts with ``.`` is relative to the folder
            of the checkpoint (default: the folder of the checkpoint).
        hub: class of the returned interface (default: :class:`GeneratorHub`).
        ema: load the moving average of the weights that ``fairseq-train --store-ema`` saved (default: False).
        kwargs: options such as ``bpe`` that override those of the checkpoint.

    Returns:
        An instance of ``hub``.

    Raises:
        InputError: A folder does not exist, the checkpoint has no averaged weights, ``hub`` does not support
            the kind of model, or an option in ``kwargs`` is unknown.
    """
    given = ParsedOptions(Namespace(**kwargs))
    for fault in chain(check_int8_precision(given), check_shortlist(given)):
        raise InputError(fault)
    folders = find_folders(model_name_or_path, data_name_or_path)
    if "bpe" not in kwargs:
        find = find_text_pipeline if issubclass(hub, GeneratorHub) else find_tokenizer
        kwargs = {**find(folders), **kwargs}
    if ema:
        with _folder_of_averages(folders[0], checkpoint_file) as folder:
            loaded = hub_utils.from_pretrained(folder, checkpoint_file, str(folders[1].absolute()), **kwargs)
    else:
        paths = str(model_name_or_path), checkpoint_file, str(data_name_or_path)
        loaded = hub_utils.from_pretrained(*paths, **kwargs)
    supported, kind = hub.supports
    model_class = type(loaded["models"][0])
    if not issubclass(model_class, supported):
        name = model_class.__name__
        raise InputError(f"expected a checkpoint of a {kind}, got {name}: use {name}.from_pretrained")
    check_overrides(kwargs, loaded["args"], "from_pretrained", (*_ARGUMENTS_OF_LOADING, *tokenizer_options()))
    return hub(loaded["args"], loaded["task"], loaded["models"])
