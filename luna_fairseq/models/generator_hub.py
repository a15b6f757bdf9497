"""A trained translation or causal language model for use from Python: fairseq's generator interface, and its
attention."""

import os
import tempfile
from argparse import Namespace
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Type

import torch
from torch import Tensor

from fairseq import hub_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.token_generation_constraints import pack_constraints
from luna_fairseq.checks.names import check_overrides, nearest
from luna_fairseq.checks.options import OF_A_SOURCE, Given, precision_of_int8
from luna_fairseq.errors import InputError
from luna_fairseq.models.document_translation import translate_document
from luna_fairseq.models.ema import write_ema
from luna_fairseq.models.stream import Stream
from luna_fairseq.models.tokenizers import (
    find_text_pipeline,
    find_tokenizer,
    folders_of,
    set_languages,
    tokenizer_options,
)
from luna_fairseq.text.output_length import limits_by_source
from luna_fairseq.text.pieces import check_encoded, check_tokenizer

# What fairseq's from_pretrained takes that is no option of a training.
_OF_FROM_PRETRAINED = ("user_dir", "generation_args", "load_checkpoint_heads", "archive_map")


class GeneratorHub(hub_utils.GeneratorHubInterface):
    """What ``from_pretrained`` of these models returns.

    Raises:
        InputError: the tokenizer belongs to other dictionaries; or there is none, the dictionary is of
            pieces, and a text is plain
    """

    bpe: Any  # the tokenizer, of which fairseq has no type
    reads: Tuple[Type[Any], str] = (FairseqEncoderDecoderModel, "translation model")
    translate_document = translate_document
    bounded_by_source = True

    def __init__(self, cfg: Any, task: Any, models: Any):
        set_languages(cfg.tokenizer, task)
        super().__init__(cfg, task, models)
        check_tokenizer(self.bpe, self.src_dict, self.tgt_dict)
        # fairseq has switched off what translate(..., print_alignment=) and "attention" may ask for later.
        for module in self.modules():
            if hasattr(module, "need_attn"):
                module.need_attn = True

    def apply_bpe(self, sentence: str) -> str:
        """The pieces of a text, between spaces."""
        if self.bpe is None:
            check_encoded(sentence, self.src_dict)
        return super().apply_bpe(sentence)

    def generate(
        self, tokenized_sentences: Any, beam: int = 5, *args: Any, constraints: Any = None, **kwargs: Any
    ) -> Any:
        """Generate as fairseq does, with two differences.

        Unless ``max_len_a``, ``max_len_b`` or ``min_len`` is given, a translation has at most 1.5 times the
        tokens of its source and 20 more. ``constraints`` lists for each sentence the phrases, as text, that
        its translation contains in this order; sentences are then translated one by one, without that limit.

        Raises:
            InputError: constraints of another number of sentences; ``print_alignment`` without weights; an
                option that generation does not have, or a value that it cannot have
        """
        own = signature(hub_utils.GeneratorHubInterface.generate).parameters
        known = {*GenerationConfig.__dataclass_fields__, *own}
        for name in kwargs.keys() - known:
            raise InputError(f"generation has no option {name}{nearest(name, known)}")
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
                f"constraints of {len(constraints)} sentences, not of {len(tokenized_sentences)}: give a "
                "list of phrases for each"
            )
        found = []
        for tokens, phrases in zip(tokenized_sentences, constraints):
            texts = [phrases] if isinstance(phrases, str) else phrases
            wanted = [self._tokens_of_target(text) for text in texts]
            packed = pack_constraints([wanted]).to(self.device)
            given = {**kwargs, "constraints": "ordered", "inference_step_args": {"constraints": packed}}
            found += super().generate([tokens], beam, *args, **given)
        return found

    def _length_limits(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the default limits of a translation, none if its length was ``given`` here or on loading."""
        if not self.bounded_by_source:
            return {}
        own, defaults = self.cfg.generation, GenerationConfig()
        on_loading = {name: own[name] for name in own if own[name] != getattr(defaults, name, None)}
        return limits_by_source({**on_loading, **given})

    def _tokens_of_target(self, text: str) -> Tensor:
        encoded = self.apply_bpe(self.tokenize(text))
        return self.tgt_dict.encode_line(encoded, append_eos=False, add_if_not_exist=False).long()


class LanguageModelHub(GeneratorHub):
    """The same of a causal language model, which can read a text of any length and go on from there."""

    SEGMENT = 512
    reads = FairseqLanguageModel, "causal language model"
    bounded_by_source = False

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's. Raises InputError for what is of translation: alignments and constraints."""
        for name in OF_A_SOURCE:
            if kwargs.get(name) not in (None, False):
                raise InputError(f"{name} is for translation: a language model has no source")
        return super().generate(*args, **kwargs)

    @torch.no_grad()
    def read(self, text: str, stream: Optional[Stream] = None) -> Stream:
        """Read a line of ``text``, after the lines that ``stream`` has read (default: none), and return what
        the model remembers. Raises InputError for several models."""
        model, stream = self._one_model(), Stream() if stream is None else stream
        tokens = self.encode(text).to(self.device)
        # What is read before a token is the one before it, and at the beginning of a line its end.
        before = torch.cat([tokens[-1:], tokens[:-1]])[None]
        for segment in before.split(self.SEGMENT, dim=1):
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
        """fairseq's; with a ``stream`` as if the model had just read what that has, which stays as it is.
        Raises InputError for a stream and several models."""
        if stream is None or isinstance(sentences, str):  # fairseq's calls this method again for a text
            given = kwargs if stream is None else {**kwargs, "stream": stream}
            return super().sample(sentences, beam, verbose, **given)
        decoder = self._one_model().decoder
        decoder.begin_from = stream.for_rows
        try:
            return super().sample(sentences, beam, verbose, **kwargs)
        finally:
            decoder.begin_from = None

    def _one_model(self) -> Any:
        if len(self.models) > 1:
            raise InputError("a stream is what one model remembers: load one checkpoint, not several")
        return self.models[0]


@contextmanager
def _averaged(folder: Path, names: str) -> Iterator[str]:
    """Context manager that yields a temporary folder with the averaged weights of checkpoints in ``folder``.

    ``names`` are the checkpoints' names, separated as fairseq separates them.
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
    """Load a model as fairseq's ``from_pretrained`` does.

    Without ``bpe``, the tokenizer is the one whose files are in one of the two folders:
    ``sentencepiece.bpe.model``, ``encoder.json`` and ``vocab.bpe`` of GPT-2, or ``bpe.codes`` of Moses data.
    Without such files, text is words, or pieces, between spaces.

    Args:
        model_name_or_path: folder of the checkpoint
        checkpoint_file: name of the checkpoint (default: model.pt)
        data_name_or_path: folder of the dictionaries (default: the folder of the checkpoint)
        hub: class of the returned interface
        ema: load the weights that ``fairseq-train --store-ema`` averaged (default: False)
        kwargs: options such as ``bpe`` that override the checkpoint's

    Raises:
        InputError: a folder does not exist, the checkpoint has no averaged weights, the model is of another
            kind than ``hub`` reads, or ``kwargs`` has what is no option
    """
    for fault in precision_of_int8(Given(Namespace(**kwargs))):
        raise InputError(fault)
    folders = folders_of(model_name_or_path, data_name_or_path)
    if "bpe" not in kwargs:
        find = find_text_pipeline if issubclass(hub, GeneratorHub) else find_tokenizer
        kwargs = {**find(folders), **kwargs}
    words = str(model_name_or_path), checkpoint_file, str(data_name_or_path)
    if ema:
        with _averaged(folders[0], checkpoint_file) as folder:
            found = hub_utils.from_pretrained(folder, checkpoint_file, str(folders[1].absolute()), **kwargs)
    else:
        found = hub_utils.from_pretrained(*words, **kwargs)
    wanted, kind = hub.reads
    own = type(found["models"][0])
    if not issubclass(own, wanted):
        name = own.__name__
        raise InputError(f"the checkpoint is no {kind} but {name}: load it by {name}.from_pretrained")
    check_overrides(kwargs, found["args"], "from_pretrained", (*_OF_FROM_PRETRAINED, *tokenizer_options()))
    return hub(found["args"], found["task"], found["models"])
