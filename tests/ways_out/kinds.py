"""Kinds of models, each with a small checkpoint and sequences to score."""

from argparse import Namespace
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import tiny_luna
import tiny_masked_lm
import tiny_models
import torch
from tiny_checkpoints import training_state, write_dictionary
from tiny_luna import EOS, PAD, sentences

from luna_fairseq.models import LunaClassifier, LunaLanguageModel, LunaMaskedLM, LunaModel

GRID = 2.0**-12  # parameters are multiples of this number, so that the mean of two checkpoints is exact
LONGEST = 300
TRANSLATION, CAUSAL, MASKED, CLASSES = "translation", "causal LM", "masked LM", "classes"
SEPARATOR = 4


class Kind(NamedTuple):
    """Kind of model.

    Attributes:
        job: task of the model: translation, causal LM, masked LM or classes.
        options: options that differ from the small model of this task.
        head: classification head of a masked language model (default: None).
        sizes: sizes of the source and the target dictionary.
        lengths: lengths of the sequences, on both sides of each length at which the computation changes.
    """

    job: str
    options: Dict[str, Any]
    head: Optional[str] = None
    sizes: Tuple[int, int] = (23, 19)
    lengths: Tuple[int, ...] = (5, 4, 6, 64, 63, 65, 200)

    @property
    def has_decoder(self) -> bool:
        return self.job in (TRANSLATION, CAUSAL)

    @property
    def is_lra(self) -> bool:
        return self.job == CLASSES and self.head is None


LOOK_UP = (5, 4, 6, 64, 63, 65, 200, 255, 256, 257)  # a batch of the last lengths is stored by segments
KINDS = {
    "two vocabularies": Kind(TRANSLATION, {}),
    "one vocabulary": Kind(TRANSLATION, {"share_all_embeddings": True}, sizes=(23, 23)),
    "untied": Kind(TRANSLATION, {"untie_luna_kv": True}),
    "pre-norm": Kind(TRANSLATION, tiny_luna.PRE_NORM),
    "softmax cross": Kind(TRANSLATION, {"cross_attention": "softmax"}),
    "anchored": Kind(TRANSLATION, {"anchored_packed": True, "local_parts": 3, "projection_length": 16}),
    "look-up": Kind(
        TRANSLATION, {**tiny_luna.LOOK_UP, "diagonal_prior": True, "causal_decay": True}, lengths=LOOK_UP
    ),
    "documents": Kind(TRANSLATION, {**tiny_luna.LOOK_UP, **tiny_luna.SENTENCE_DIAGONAL}, lengths=LOOK_UP),
    "causal LM": Kind(CAUSAL, {}, sizes=(23, 23)),
    "causal LM with decay": Kind(CAUSAL, {"causal_decay": True}, sizes=(23, 23)),
    "masked LM": Kind(MASKED, {}),
    "anchored masked LM": Kind(MASKED, {"anchored_packed": True, "local_parts": 3, "projection_length": 16}),
    "classifier of a token": Kind(CLASSES, {}, head="sentence_classification_head"),
    "classifier of P": Kind(CLASSES, {}, head="attention_classification_head"),
    "LRA classifier": Kind(CLASSES, {}),
    "LRA classifier, mean": Kind(CLASSES, {"sen_rep_type": "mp"}),
}
# fairseq's task, the model's architecture, and the first symbols of the dictionaries.
TASKS = {
    TRANSLATION: ("translation", "luna", {"dict.a.txt": ["<sep>"], "dict.b.txt": ["<sep>"]}),
    CAUSAL: ("language_modeling", "luna_lm", {"dict.txt": ["<sep>"]}),
    MASKED: ("masked_lm", "luna_bert", {"dict.txt": []}),
    "LRA": ("lra-text", "luna_lra_listop", {"src-bin/dict.txt": [], "label-bin/dict.txt": []}),
}
BASES = {
    TRANSLATION: {**tiny_luna.OPTIONS, "decoder_layers": 2, "max_source_positions": LONGEST},
    CAUSAL: {**tiny_models.LM_OPTIONS, "tokens_per_sample": LONGEST},
    MASKED: {**tiny_masked_lm.OPTIONS, "max_positions": LONGEST},
    "LRA": {**tiny_models.CLASSIFIER_OPTIONS, "max_positions": LONGEST},
}
MODELS = {TRANSLATION: LunaModel, CAUSAL: LunaLanguageModel, MASKED: LunaMaskedLM, "LRA": LunaClassifier}


class Item(NamedTuple):
    """Sequence, or pair of sequences, that a model scores.

    Attributes:
        source: tokens that the model reads. None for a causal language model.
        target: tokens that the decoder generates, including EOS. None without a decoder.
    """

    source: Optional[List[int]]
    target: Optional[List[int]]

    @property
    def previous(self) -> List[int]:
        """Inputs of the decoder: the target shifted to the right."""
        return [EOS, *self.target[:-1]]


def items(kind: Kind, seed: int = 0) -> List[Item]:
    """Return an item for each length of a kind. The targets have the same lengths in another order."""
    lengths = kind.lengths
    if kind.job == CAUSAL:
        return [Item(None, text) for text in sentences(lengths, kind.sizes[1], seed)]
    if kind.job == TRANSLATION:
        turned = [min(length, 200) for length in (*lengths[3:], *lengths[:3])]
        sides = (
            sentences(some, size, seed + n)
            for n, (some, size) in enumerate(zip((lengths, turned), kind.sizes))
        )
        return [Item(*pair) for pair in zip(*sides)]
    first = [] if kind.is_lra else [tiny_masked_lm.BOS]
    return [
        Item([*first, *text][:length], None) for length, text in zip(lengths, sentences(lengths, 22, seed))
    ]


def write_checkpoint(kind: Kind, folder: Any) -> None:
    """Write a small checkpoint of a kind, and two checkpoints whose average it is.

    The files are model.pt (the average), a.pt and b.pt, and the dictionaries in ``data``.
    """
    group = "LRA" if kind.is_lra else MASKED if kind.job == CLASSES else kind.job
    task, arch, names = TASKS[group]
    options = {**BASES[group], "max_target_positions": LONGEST, **kind.options}
    if group == "LRA":
        del options["max_target_positions"]
    given = tiny_luna.Task(*(kind.sizes if kind.has_decoder else (23, 23)))
    given.pairs, given.max_positions = False, lambda: LONGEST
    torch.manual_seed(0)
    model = MODELS[group].build_model(Namespace(**options), given)
    if kind.head:
        model.register_classification_head(kind.head, num_classes=3)
    generator = torch.Generator().manual_seed(1)

    def noise(x, scale):
        return (torch.randn(x.shape, generator=generator) * scale / GRID).round() * GRID

    differences = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((parameter / GRID).round() * GRID + noise(parameter, 0.1))
            differences[name] = noise(parameter, 0.3)
    task_options = {"tokens_per_sample": LONGEST} if group in (CAUSAL, MASKED) else {}
    if group == TRANSLATION:
        task_options = {"source_lang": "a", "target_lang": "b", "left_pad_source": True}
    state = training_state(task, arch, options, folder / "data", **task_options)
    shared = {value.data_ptr(): name for name, value in model.named_parameters()}
    for file, sign in (("model.pt", 0), ("a.pt", 1), ("b.pt", -1)):
        weights = {}
        for name, value in model.state_dict().items():
            difference = differences.get(shared.get(value.data_ptr()))
            weights[name] = value.clone() if difference is None else value + sign * difference
        torch.save({**state, "model": weights}, str(folder / file))
    for number, (name, symbols) in enumerate(names.items()):
        size = kind.sizes[number] if kind.job in (TRANSLATION, CAUSAL) else 22  # the task adds one more
        words = [*symbols, *(f"w{i}" for i in range(size - 4 - len(symbols)))]
        write_dictionary(folder / "data" / name, words)


def padded(rows: List[List[int]], left: bool = False, extra: int = 0) -> torch.Tensor:
    """Return tokens as a padded batch [B, T], with ``extra`` additional columns of padding."""
    return tiny_luna.batch(rows, left, extra)


def values_at_tokens(values: torch.Tensor, ids: torch.Tensor) -> List[torch.Tensor]:
    """Return the values of each sequence without the positions of padding.

    Args:
        values: values [B, T, ...] for batch size B and T positions.
        ids: tokens [B, T].
    """
    return [row[mask] for row, mask in zip(values, ids.ne(PAD))]
