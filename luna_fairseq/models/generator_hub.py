"""Python interface to a trained translation or causal language model.

The interface extends fairseq's generator hub with input checks, alignments, documents and long texts.
"""

import copy
import os
from argparse import Namespace
from functools import partial
from inspect import signature
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type

import torch
from torch import Tensor

from fairseq import file_utils, hub_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.token_generation_constraints import pack_constraints
from luna_fairseq.checks.names import check_overrides, suggest_name
from luna_fairseq.checks.options import SOURCE_OPTIONS, ParsedOptions, check_int8_precision, check_shortlist
from luna_fairseq.errors import InputError
from luna_fairseq.models.document_translation import translate_document
from luna_fairseq.models.ema import ema_copies
from luna_fairseq.models.stream import Stream
from luna_fairseq.models.tokenizers import (
    find_folders,
    find_text_pipeline,
    find_tokenizer,
    first_token,
    join_lines,
    set_languages,
    tokenizer_options,
)
from luna_fairseq.text.documents import SEPARATOR, join_sentences
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.pieces import check_encoded, check_tokenizer

# Arguments of fairseq's from_pretrained that are not training options.
_ARGUMENTS_OF_LOADING = ("user_dir", "generation_args", "load_checkpoint_heads", "archive_map")
# Options of fairseq's commands that its hub takes and ignores.
_OPTIONS_OF_COMMANDS = ("lm_path", "lm_weight", "nbest", "prefix_size", "replace_unk")
# Class and name of the values of a numeric option, by the type that fairseq declares.
_NUMBERS: Dict[Any, Tuple[Any, str]] = {int: (Integral, "a whole number"), float: (Real, "a number")}
# Options that fairseq's from_pretrained takes and ignores, and what to do instead.
_NOT_FOR_LOADING = {
    **dict.fromkeys(("beam", "constraints", "score_reference"), "give it to translate, sample or generate"),
    **dict.fromkeys(("fp16", "memory_efficient_fp16"), "call half() on the loaded model"),
    **dict.fromkeys(("bf16", "memory_efficient_bf16"), "call bfloat16() on the loaded model"),
}


class GeneratorHub(hub_utils.GeneratorHubInterface):
    """Interface to a trained translation model, with plain text as input and output.

    :func:`from_pretrained` creates it. Several models are used as an ensemble.

    Example::

        hub = LunaModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        hub.translate("Guten Morgen!", beam=5)
    """

    bpe: Any  # the subword tokenizer, for which fairseq declares no type
    # Class of the models that this interface accepts, and the name of the class in messages.
    supports: Tuple[Type[Any], str] = (FairseqEncoderDecoderModel, "translation model")
    translate_document = translate_document
    is_limited_by_source = True
    positions_option = "--max-source-positions"

    def __init__(self, cfg: Any, task: Any, models: Any):
        set_languages(cfg.tokenizer, task)
        super().__init__(cfg, task, models)
        check_tokenizer(self.bpe, self.src_dict, self.tgt_dict, options=cfg.bpe)
        # fairseq disables attention weights on loading, but translate(..., print_alignment=...) needs them.
        # The option of the same name in a layer would make every layer compute weights in every step.
        for model in self.models:
            if hasattr(model.decoder, "need_attn"):
                model.decoder.need_attn = True

    def encode(self, sentence: str) -> Tensor:
        """Encode a text as token indices [length]. ``<sep>`` separates the sentences of a document."""
        return self._encode(sentence, self.src_dict, self.tokenize)

    def encode_target(self, sentence: str) -> Tensor:
        """Encode a text in the target language as token indices [length]."""
        tokenize: Any = getattr(self.tokenizer, "encode_target", self.tokenize)
        return self._encode(sentence, self.tgt_dict, tokenize)

    def _encode(self, text: str, dictionary: Any, tokenize: Callable[[str], str]) -> Tensor:
        """Tokenize and split each sentence of a text, and return the token indices [length] of the text."""
        encoded = [self.apply_bpe(tokenize(part), dictionary) for part in _sentences(text, dictionary)]
        return dictionary.encode_line(join_sentences(encoded), add_if_not_exist=False).long()

    def tokenize(self, sentence: str) -> str:
        """Tokenize a text, for example with Moses. Line breaks count as spaces."""
        return super().tokenize(join_lines(sentence, self.bpe))

    def apply_bpe(self, sentence: str, dictionary: Optional[Any] = None) -> str:
        """Split tokenized text into subwords, and return the subwords as text, separated by spaces.

        Raise InputError for plain words if ``dictionary`` (default: that of the source) has subwords, and the
        model no subword tokenizer.
        """
        if self.bpe is None:
            check_encoded(sentence, self.src_dict if dictionary is None else dictionary)
        return super().apply_bpe(sentence)

    def decode(self, tokens: Tensor) -> str:
        """Convert token indices to plain text, with ``<sep>`` between the sentences of a document."""
        text = self.remove_bpe(self.string(tokens))
        sentences = [self.detokenize(part) for part in _sentences(text, self.tgt_dict)]
        text = join_sentences(sentences)
        # An empty sentence leaves two spaces.
        return text.replace("  ", " ").strip() if len(sentences) > 1 else text

    def generate(
        self, tokenized_sentences: Any, beam: int = 5, *args: Any, constraints: Any = None, **kwargs: Any
    ) -> Any:
        """Translate encoded sentences with beam search, optionally with lexical constraints.

        The length of a translation is limited to 1.5 times the source length plus 20 tokens (plus 200 tokens
        with constraints), unless ``max_len_a``, ``max_len_b`` or ``min_len`` is given. With constraints or
        prefixes, sentences are translated one by one.

        Args:
            tokenized_sentences: token indices [length] of a sentence, or a list of such tensors.
            beam: beam size.
            args: remaining positional arguments of fairseq's ``GeneratorHubInterface.generate``, which may
                also be given by name. ``inference_step_args={"prefix_tokens": ...}`` holds the first tokens
                [B, length] of the translations.
            constraints: for each sentence, a list of plain-text phrases that the translation must contain in
                this order.
            kwargs: generation options, such as ``lenpen``.

        Returns:
            A list of hypotheses per sentence, best first. For a single sentence, only that sentence's list.
        """
        arguments = signature(hub_utils.GeneratorHubInterface.generate).parameters
        known = {*GenerationConfig.__dataclass_fields__, *arguments}
        kwargs.update(zip([*arguments][3:], args))  # the first three are self, the sentences and the beam
        if kwargs.pop("skip_invalid_size_inputs", False):
            raise InputError("skip_invalid_size_inputs leaves sentences out of the result: remove it")
        for name in kwargs.keys() - known:
            raise InputError(f"generation has no option {name}{suggest_name(name, known)}")
        _check_no_options_of_commands(kwargs)
        if kwargs.get("retain_dropout"):
            raise InputError("retain_dropout has no effect after loading: give it to from_pretrained")
        if self.is_limited_by_source and kwargs.get("score_reference"):
            raise InputError(
                "a text of the source language has no score without its translation: use fairseq-generate "
                "--score-reference"
            )
        for model in self.models:
            if hasattr(model, "check_generation"):
                model.check_generation(Namespace(**kwargs))
        _check_values({**kwargs, "beam": beam}, self.cfg.generation)
        if not isinstance(tokenized_sentences, Tensor) and not len(tokenized_sentences):
            return []
        if isinstance(tokenized_sentences, Tensor) and tokenized_sentences.dim() == 1:
            # fairseq would drop some arguments, such as prefix_allowed_tokens_fn.
            of_sentence = None if constraints is None else [constraints]
            return self.generate([tokenized_sentences], beam, constraints=of_sentence, **kwargs)[0]
        self._check_lengths(tokenized_sentences)
        step_args = kwargs.pop("inference_step_args", None) or {}
        for name, values in {**step_args, "constraints": constraints}.items():
            if values is not None and len(values) != len(tokenized_sentences):
                raise InputError(
                    f"expected {name} for {len(tokenized_sentences)} sentences, got {len(values)}: pass "
                    "as many as there are sentences"
                )
        limits = self._length_limits(kwargs)
        if limits and constraints is not None:
            limits["max_len_b"] = GenerationConfig.max_len_b
        kwargs = {**limits, **kwargs}
        if constraints is None and not step_args:
            return super().generate(tokenized_sentences, beam, **kwargs)
        allowed_tokens = kwargs.get("prefix_allowed_tokens_fn")
        results = []
        for number, tokens in enumerate(tokenized_sentences):
            # In a batch, fairseq would sort the sentences, but not their prefixes.
            given = {name: values[number : number + 1] for name, values in step_args.items()}
            options = {**kwargs, "inference_step_args": given}
            if allowed_tokens is not None:
                options["prefix_allowed_tokens_fn"] = lambda _, prefix, number=number: allowed_tokens(
                    number, prefix
                )
            if constraints is not None:
                phrases = constraints[number]
                texts = [phrases] if isinstance(phrases, str) else phrases
                phrase_tokens = [self.encode_target(text)[:-1] for text in texts]  # without </s>
                given["constraints"] = pack_constraints([phrase_tokens]).to(self.device)
                options["constraints"] = "ordered"
            results += super().generate([tokens], beam, **options)
        return results

    def _build_batches(self, tokens: Any, skip_invalid_size_inputs: bool) -> Iterator[Dict[str, Any]]:
        """Divide encoded sentences into batches. They may be longer than ``--max-tokens`` of the training."""
        lengths, limits = torch.tensor([len(sentence) for sentence in tokens]), self.cfg.dataset
        batches = self.task.get_batch_iterator(
            dataset=self.task.build_dataset_for_inference(tokens, lengths),
            max_tokens=limits.max_tokens and max(limits.max_tokens, int(lengths.max())),
            max_sentences=limits.batch_size,
            max_positions=self.max_positions,
            ignore_invalid_inputs=skip_invalid_size_inputs,
            disable_iterator_cache=True,
        )
        return batches.next_epoch_itr(shuffle=False)

    def _check_lengths(self, sentences: Iterable[Tensor]) -> None:
        """Raise InputError if an encoded sentence [length] exceeds the positions of the models."""
        if getattr(self.task, "reads_any_length", False):
            return
        limits = self.max_positions  # of the source and of the target, or of a language model
        longest = limits[0] if isinstance(limits, tuple) else limits
        for number, tokens in enumerate(sentences, 1):
            if longest is not None and len(tokens) > longest:
                raise InputError(
                    f"sentence {number} has {len(tokens)} tokens, the model's positions end at {longest}: "
                    f"shorten it, or train with a larger {self.positions_option}"
                )

    def _length_limits(self, options: Mapping[str, Any]) -> Dict[str, Any]:
        """Return generation options that limit the length of translations relative to the source.

        The result is {} for a language model, or if ``options`` or the options given at loading set a limit.
        """
        if not self.is_limited_by_source:
            return {}
        loaded, defaults = self.cfg.generation, GenerationConfig()
        changed = {name: loaded[name] for name in loaded if loaded[name] != getattr(defaults, name, None)}
        return limits_by_source({**changed, **options})


def _check_no_options_of_commands(options: Mapping[str, Any]) -> None:
    """Raise InputError if ``options`` has an option that only fairseq's commands use."""
    for name in _OPTIONS_OF_COMMANDS:
        if options.get(name) not in (None, getattr(GenerationConfig(), name)):
            raise InputError(f"{name} has an effect in fairseq's commands only: remove it")


def _check_values(given: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Raise InputError for a value with which the search would fail.

    ``given`` holds the options of a search, and ``loaded`` those given at loading.
    """
    for name, value in given.items():
        field = GenerationConfig.__dataclass_fields__.get(name)
        kind, expected = _NUMBERS.get(field and field.type, (object, ""))
        if not isinstance(value, kind) and name not in _OPTIONS_OF_COMMANDS:
            raise InputError(f"{name} {value!r}: expected {expected}")
    options = {**loaded, **given}
    if options["beam"] < 1:
        raise InputError(f"beam {options['beam']}: must be at least 1")
    if not options.get("temperature", 1) > 0:
        raise InputError(f"temperature {options['temperature']}: must be above 0")
    if options.get("print_alignment") not in (None, False, "hard", "soft"):
        raise InputError(f"print_alignment {options['print_alignment']!r}: give 'hard' or 'soft'")
    for name in ("sampling_topk", "sampling_topp"):
        if options.get(name, -1) >= 0 and not options.get("sampling"):
            raise InputError(f"{name} has an effect with sampling=True only: give both, or neither")


def _sentences(text: str, dictionary: Any) -> List[str]:
    """Split a text at ``<sep>`` if the dictionary has it, otherwise return the text as the only sentence."""
    return [part.strip() for part in text.split(SEPARATOR)] if SEPARATOR in dictionary else [text]


class LanguageModelHub(GeneratorHub):
    """Interface to a trained causal language model that continues a text of any length.

    Example::

        hub = LunaLanguageModel.from_pretrained("checkpoints", "checkpoint_best.pt", "../data-bin")
        stream = hub.read("Call me Ishmael.")
        hub.sample("Some years ago", stream=stream, sampling=True)
    """

    SEGMENT = 512  # number of tokens that read() passes to the model at a time
    supports = FairseqLanguageModel, "causal language model"
    is_limited_by_source = False
    positions_option = "--tokens-per-sample"

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Continue encoded sequences, with the arguments and the result of :meth:`GeneratorHub.generate`."""
        for name in SOURCE_OPTIONS:
            if kwargs.get(name) not in (None, False):
                raise InputError(f"{name} is for translation, a language model has no source: remove it")
        return super().generate(*args, **kwargs)

    @torch.no_grad()
    def read(self, text: str, stream: Optional[Stream] = None) -> Stream:
        """Feed a line of text to the model, and return the model state after this line.

        ``stream`` is the state after the preceding lines, and is updated in place. If None, the line begins a
        new text.
        """
        model, stream = self._get_only_model(), Stream() if stream is None else stream
        tokens = self.encode(text).to(self.device)
        # The input is shifted right by one token. As in fairseq, the first one begins a line.
        shifted = torch.cat([tokens.new_tensor([first_token(self.task)]), tokens[:-1]])[None]
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
        """Generate continuations of a text or of a list of texts. Return each text with its continuation.

        ``stream`` is a state returned by :meth:`read`. If it is given, each text continues the text that was
        read, and the state is not modified. ``beam``, ``verbose`` and the generation options ``kwargs``, such
        as ``sampling``, have the same meaning as in fairseq's hub interface.
        """
        if stream is None or isinstance(sentences, str):  # for a single text, fairseq calls this method again
            options = kwargs if stream is None else {**kwargs, "stream": stream}
            return super().sample(sentences, beam, verbose, **options)
        self._get_only_model()
        # The search of this call begins after the text. Other threads share the model, but not these copies.
        hub, task = copy.copy(self), copy.copy(self.task)
        options = {"begin_from": stream.repeat}
        task.build_generator = partial(self.task.build_generator, extra_gen_cls_kwargs=options)
        hub.task = task
        return super(LanguageModelHub, hub).sample(sentences, beam, verbose, **kwargs)

    def _get_only_model(self) -> Any:
        """Return the model of this hub. Raise InputError for an ensemble, or a model without such a state."""
        if len(self.models) > 1:
            raise InputError("a stream is the state of one model: load one checkpoint, not several")
        if not hasattr(self.models[0].decoder, "continue_from"):
            name = type(self.models[0]).__name__
            raise InputError(
                f"{name} has no stream, only models of --arch luna_lm: give sample the whole text"
            )
        return self.models[0]


def from_pretrained(
    model_name_or_path: str,
    checkpoint_file: str = "model.pt",
    data_name_or_path: str = ".",
    *,
    hub: Type[Any] = GeneratorHub,
    ema: bool = False,
    **kwargs: Any,
) -> Any:
    """Load a trained model with its dictionaries and tokenizer, and return it in a hub interface.

    If ``bpe`` is not given, the tokenizer is inferred from the files in the checkpoint or dictionary folder:
    ``sentencepiece.bpe.model``, ``encoder.json`` and ``vocab.bpe`` of GPT-2, or ``bpe.codes`` for text
    tokenized with Moses. Without such files, input text consists of words or subwords separated by spaces.

    Args:
        model_name_or_path: checkpoint folder.
        checkpoint_file: checkpoint file name, or several names separated by ``:``.
        data_name_or_path: dictionary folder. A path that starts with ``.`` is relative to the checkpoint
            folder.
        hub: class of the returned interface.
        ema: load the moving average of the weights that ``fairseq-train --store-ema`` saved.
        kwargs: options such as ``bpe`` that override the options stored in the checkpoint.

    Raises:
        InputError: A folder or the averaged weights are missing, ``hub`` does not support this type of model,
            or an option is unknown or has no effect.
    """
    given = ParsedOptions(Namespace(**kwargs))
    for fault in chain(check_int8_precision(given), check_shortlist(given)):
        raise InputError(fault)
    settings = {**(kwargs.get("generation_args") or {}), **kwargs}
    _check_no_options_of_commands(settings)
    for name, advice in _NOT_FOR_LOADING.items():
        if settings.get(name):
            raise InputError(f"{name} has no effect in from_pretrained: {advice}")
    folders = find_folders(model_name_or_path, data_name_or_path)
    if "bpe" not in kwargs:
        find = find_text_pipeline if issubclass(hub, GeneratorHub) else find_tokenizer
        kwargs = {**find(folders), **kwargs}
    folder, data = str(model_name_or_path), str(data_name_or_path)
    if ema:
        folder = file_utils.load_archive_file(folder)  # unpacks an archive, as hub_utils does
        names = checkpoint_file.split(os.pathsep)
        with ema_copies(Path(folder, name) for name in names) as copies:
            checkpoint_file = os.pathsep.join(map(str, copies))
            loaded = hub_utils.from_pretrained(folder, checkpoint_file, data, **kwargs)
    else:
        loaded = hub_utils.from_pretrained(folder, checkpoint_file, data, **kwargs)
    supported, kind = hub.supports
    model_class = type(loaded["models"][0])
    if not issubclass(model_class, supported):
        name = model_class.__name__
        raise InputError(f"expected a checkpoint of a {kind}, got {name}: use {name}.from_pretrained")
    check_overrides(kwargs, loaded["args"], "from_pretrained", (*_ARGUMENTS_OF_LOADING, *tokenizer_options()))
    return hub(loaded["args"], loaded["task"], loaded["models"])
