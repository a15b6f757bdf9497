"""Models of one size for the benchmarks ``train``, ``lra`` and ``decode``, and batches of random tokens."""

import sys
from argparse import Namespace
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Optional, Tuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import luna_fairseq.models  # noqa: F401  (registers the architectures)
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.modules import MultiheadAttention
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.attention import explicit_attention, luna_attention, why_no_sdpa
from luna_fairseq.benchmark.task import DTYPES, BatchSize, Case, Task, choice
from luna_fairseq.commands.arguments import Number
from luna_fairseq.errors import InputError
from luna_fairseq.models.int8 import quantise
from luna_fairseq.modules.heads import dropout_probability, merge_heads, split_heads
from luna_fairseq.ops.absorbed import is_plain, saves_time
from luna_fairseq.ops.attention import in_a_graph
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.attention import FORMS, PeerAttention

Names = Mapping[str, str]
Change = Optional[Callable[[nn.Module], None]]
# Sizes of a model, in the order of the tuples below.
SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
TRANSFORMER = {"base": (6, 512, 2048, 8), "small": (3, 256, 1024, 4)}
PRESETS = {
    "translate": TRANSFORMER,
    "decode": TRANSFORMER,
    "masked_lm": {"base": (12, 768, 3072, 12), "small": (4, 256, 1024, 4)},
    "classify": {"base": (4, 256, 1024, 4)},
}


class FusedAttention(MultiheadAttention):
    """Replacement for fairseq's attention that calls ``scaled_dot_product_attention``.

    The attention serves whole sequences. Masks are passed in the form for which torch has fused kernels, and
    ``attn_mask`` must be the causal mask.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Tuple[Tensor, None]:
        """Compute multi-head attention.

        T is the number of queries, S the number of keys, B the batch size, and C the model width.

        Args:
            query: queries [T, B, C].
            key: keys [S, B, C].
            value: values [S, B, C].
            **masks: ``key_padding_mask`` [B, S] and ``attn_mask`` [T, S]; other arguments are ignored.

        Returns:
            - output [T, B, C].
            - None in place of the attention weights.
        """
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (split_heads(x, self.num_heads) for x in projected)
        padding, later = masks.get("key_padding_mask"), masks.get("attn_mask")
        mask = None if padding is None else ~padding.bool()[:, None, None, :]
        if mask is not None and later is not None:
            mask = mask & (later == 0)
        dropout, causal = dropout_probability(self.dropout_module), mask is None and later is not None
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.out_proj(merge_heads(output)), None


def set_on_each(kind: type, name: str, value: Callable[[Any], Any], model: nn.Module) -> None:
    """Set an attribute of every module of one class.

    Args:
        kind: class of the modules.
        name: name of the attribute.
        value: function that returns the value for a module.
        model: model that contains the modules.
    """
    for child in model.modules():
        if isinstance(child, kind):
            setattr(child, name, value(child))


# Compute fairseq's attention with torch's fused function. Parameters keep their names.
use_fused_attention = partial(set_on_each, MultiheadAttention, "__class__", lambda child: FusedAttention)
# Compute fairseq's attention with explicit weights. fairseq does so if it skips the check of the widths.
use_explicit_weights = partial(set_on_each, MultiheadAttention, "skip_embed_dim_check", lambda child: True)
# Compute the attentions of the peers by their definitions.
use_definitions = partial(set_on_each, PeerAttention, "attend", lambda child: child.attend_naively)


@contextmanager
def replace_in_package(function: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """Context manager in which the modules of this package call another function.

    Args:
        function: function to replace, by its name in each module.
        other: function that is called in place of it.
    """
    name = function.__name__
    with ExitStack() as stack:
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("luna_fairseq.") and vars(module).get(name) is function:
                stack.enter_context(mock.patch.object(module, name, other))
        yield


def absorbed_projections_everywhere() -> ContextManager[None]:
    """Return a context manager in which the rows of P absorb all projections that they can absorb."""

    def can_absorb(rows: Tensor, tokens: Tensor, *projections: nn.Module, products: int = 2) -> bool:
        return not in_a_graph() and all(map(is_plain, projections))

    return replace_in_package(saves_time, can_absorb)


@contextmanager
def explicit_attention_everywhere() -> Iterator[None]:
    """Context manager in which Luna's and torch's attentions are computed with explicit weights.

    All tokens are projected: no projection is absorbed by the rows of P.
    """
    with ExitStack() as stack:
        stack.enter_context(replace_in_package(saves_time, lambda *_, **__: False))
        if hasattr(torch.nn, "attention"):
            stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        stack.enter_context(replace_in_package(luna_attention, explicit_attention))
        yield


@dataclass(frozen=True)
class Model:
    """Model to measure, a row of the benchmarks on whole models.

    Attributes:
        architectures: name of fairseq's architecture for each task that the row belongs to.
        options: options of the model, besides its sizes.
        change: function that changes the model after it has been built (default: None, no change).
        peer: True to compare the speed of all rows with this row (default: False).
        optional: True to measure the row only if ``--with`` names it (default: False).
        dtype: data type of the model (default: the data type of ``--dtype``).
    """

    architectures: Names
    options: Mapping[str, Any] = field(default_factory=dict)
    change: Change = None
    peer: bool = False
    optional: bool = False
    dtype: str = ""

    def definition(self) -> "Model":
        """Return the row that computes the same results by definition.

        Its models must run within :func:`explicit_attention_everywhere`.
        """
        options = {**self.options, "luna_backend": "naive", "torch_compile": False}
        return replace(self, options=options, change=use_definitions)


def luna(architectures: Names, untied: bool = False, change: Change = None, **options: Any) -> Model:
    """Create a row for a Luna model.

    The row is optional if it has a change or further options.

    Args:
        architectures: name of fairseq's architecture for each task.
        untied: use separate keys and values (default: False).
        change: function that changes the model after it has been built (default: None, no change).
        **options: further options of the model.

    Returns:
        The row.
    """
    optional = bool(options or change)
    return Model(architectures, {"untie_luna_kv": untied, **options}, change, optional=optional)


def peer(attention: str, **options: Any) -> Model:
    """Create an optional row for a Transformer with another attention.

    The row belongs to the translation tasks only if the attention has a causal form and a form for attention
    to the source.

    Args:
        attention: name of the attention.
        **options: options of the attention.

    Returns:
        The row.
    """
    architectures = {"classify": "peer_lra_imdb", "masked_lm": "peer_roberta"}
    if set(FORMS) <= set(ATTENTIONS[attention].forms):
        architectures.update(translate="peer_transformer", decode="peer_transformer")
    return Model(architectures, {"attention": attention, **options}, optional=True)


PLAIN = {"translate": "luna", "decode": "luna", "masked_lm": "luna_masked_lm"}
ANCHORED = {"translate": "luna_anchored", "decode": "luna_anchored"}
INT8 = {"decode": "peer_transformer"}
TEXT = {"classify": "transformer_lra_imdb"}
# Rows in the order of the output. {l} stands for each --projection-length.
MODELS: Dict[str, Model] = {
    "transformer": Model({"translate": "transformer", "decode": "transformer"}, peer=True),
    "transformer-softmax": Model(TEXT, change=use_explicit_weights, peer=True),
    "transformer-sdpa": Model({"translate": "transformer", **TEXT}, change=use_fused_attention, peer=True),
    "roberta-softmax": Model({"masked_lm": "roberta"}, change=use_explicit_weights, peer=True),
    "roberta-sdpa": Model({"masked_lm": "roberta"}, change=use_fused_attention, peer=True),
    **{f"peer-{name}": peer(name) for name in ATTENTIONS},
    "peer-softmax-alibi": peer("softmax", alibi=True),
    # fairseq's attention cannot be quantised, because it reads its weights directly. The peer's attention
    # can.
    "peer-softmax-int8": replace(peer("softmax"), architectures=INT8, change=quantise),
    "luna-{l}-tied": luna(PLAIN),
    "luna-{l}-untied": luna(PLAIN, untied=True),
    "transformer-bfloat16": Model({"translate": "transformer"}, dtype="bfloat16", optional=True),
    "luna-{l}-bfloat16": replace(luna({"translate": "luna"}), dtype="bfloat16", optional=True),
    "luna-{l}-anchored": luna({**ANCHORED, "masked_lm": "luna_anchored_base_512"}),
    "luna-{l}-no-look-up": luna(ANCHORED, packed_lookup=0),
    "luna-{l}-softmax-cross": luna(ANCHORED, packed_lookup=0, cross_attention="softmax"),
    "luna-{l}-compiled": luna(PLAIN, torch_compile=True),
    "luna-{l}-int8": luna({"decode": "luna"}, change=quantise),
    "luna-{l}-chunk": luna(PLAIN, luna_backend="chunk"),
    "luna-{l}-triton": luna(PLAIN, luna_backend="triton"),
    "luna-{l}": luna({"classify": "luna_lra_imdb"}, untied=True),
}


class ModelTask(Task):
    """Base class of benchmarks on whole models, all of one size.

    Attributes:
        task: key of the architectures; rows without an architecture for this task are not measured.
    """

    task: str
    options = {
        "--preset": choice("base", "small", help="size of the models"),
        "--dictionary-size": dict(
            type=Number(int, least=5),
            metavar="N",
            help="number of entries of the dictionary (default: 32000, or 260 for bytes)",
        ),
        "--dtype": choice("float32", "bfloat16", "float16", help="data type of the models"),
    }

    @property
    def sizes(self) -> Dict[str, int]:
        """Sizes of all models, by fairseq's name without the prefix ``encoder_`` or ``decoder_``."""
        presets, preset = PRESETS[self.task], self.args.preset
        if preset not in presets:
            raise InputError(f"--preset {preset}: --task {self.task} has only {', '.join(presets)}")
        return dict(zip(SIZES, presets[preset]))

    @property
    def types(self) -> int:
        """Size of the dictionary. The default for bytes, 260, includes fairseq's four special symbols."""
        return self.args.dictionary_size or (260 if self.task == "classify" else 32000)

    def dictionary(self) -> Dictionary:
        """Create the dictionary that source and target share."""
        dictionary = Dictionary()
        for i in range(self.types - len(dictionary)):
            dictionary.add_symbol(f"w{i}")
        return dictionary

    def fairseq_task(self, T: int) -> Any:
        """Create the fairseq task for which models are built.

        Args:
            T: largest number of positions.

        Returns:
            A translation task with the dictionary of this benchmark.
        """
        dictionary = self.dictionary()
        task = TranslationTask(TranslationConfig(), dictionary, dictionary)
        task.max_positions, task.pairs = lambda: T, False
        return task

    def rows(self) -> Dict[str, Model]:
        """Return the models of this task by name, with Luna at every ``--projection-length``."""
        found = {}
        for length in self.args.projection_length:
            lengths = {"projection_length": length, "encoder_projection_length": length}
            for name, row in MODELS.items():
                if self.task in row.architectures:
                    found[name.format(l=length)] = replace(row, options={**lengths, **row.options})
        return found

    def why_not(self, row: Model, case: Case) -> str:
        """Return the reason why a model cannot run in this version of torch.

        Args:
            row: model to measure.
            case: not used.

        Returns:
            A clause with the reason, or an empty string if the model can run.
        """
        return why_no_sdpa() if row.change is use_fused_attention else ""

    def common_options(self, T: int, dropout: float) -> Dict[str, Any]:
        """Return the options that all models share, by fairseq's name.

        Args:
            T: length of the sentences in tokens.
            dropout: dropout probability.

        Returns:
            The options by name.
        """
        options = {f"encoder_{name}": number for name, number in self.sizes.items()}
        if self.task not in ("translate", "decode"):
            positions = T if self.task == "masked_lm" else max(1024, T)
            return {**options, "dropout": dropout, "attention_dropout": dropout, "max_positions": positions}
        options.update({f"decoder_{name}": number for name, number in self.sizes.items()})
        options.update({f"max_{side}_positions": max(1024, T + 2) for side in ("source", "target")})
        return {**options, "dropout": dropout, "share_all_embeddings": True}

    def make_model(self, row: Model, T: int, dropout: float = 0.1) -> BaseFairseqModel:
        """Build a model with random weights, in training mode.

        Args:
            row: model to build.
            T: length of the sentences in tokens.
            dropout: dropout probability (default: 0.1).

        Returns:
            The model on the device and in the data type of the options.
        """
        torch.manual_seed(self.args.seed)
        architecture = row.architectures[self.task]
        options = Namespace(**{**self.common_options(T, dropout), **row.options})
        ARCH_CONFIG_REGISTRY[architecture](options)
        model = ARCH_MODEL_REGISTRY[architecture].build_model(options, self.fairseq_task(T))
        if row.change is not None:
            row.change(model)
        return model.to(self.args.device, DTYPES[row.dtype or self.args.dtype]).train()

    def random_sentences(self, batch: BatchSize) -> Tensor:
        """Create a batch of random sentences that end with the end-of-sentence token.

        Args:
            batch: number of sentences, and their length T.

        Returns:
            Token indices [sentences, T].
        """
        dictionary = self.dictionary()
        tokens = torch.randint(dictionary.nspecial, len(dictionary), tuple(batch), device="cpu")
        tokens[:, -1] = dictionary.eos()
        return tokens if self.args.device == "meta" else tokens.to(self.args.device)

    def describe(self) -> str:
        """Format the sizes and options that all models share as one line."""
        values = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
        return f"{self.task}: {values}, dictionary {self.types} (one embedding for all), {super().describe()}"
