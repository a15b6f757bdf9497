"""Models for the benchmarks ``train``, ``lra`` and ``decode``, and batches of random tokens."""

from argparse import Namespace
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import luna_fairseq.models  # noqa: F401  (registers the architectures)
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.modules import MultiheadAttention
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.attention import missing_sdpa
from luna_fairseq.benchmark.forms import force_forms
from luna_fairseq.benchmark.task import DTYPES, BatchSize, Case, Task, choice_option
from luna_fairseq.commands.arguments import Number
from luna_fairseq.errors import InputError
from luna_fairseq.models.bfloat16_linear import has_bfloat16_products, use_bfloat16
from luna_fairseq.models.int8 import quantise
from luna_fairseq.modules.heads import dropout_probability, merge_heads, split_heads
from luna_fairseq.ops.causal_luna.triton import why_not_triton
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.attention import ROLES, PeerAttention

Names = Mapping[str, str]
Change = Optional[Callable[[nn.Module], None]]
# Model sizes, in the order of the tuples below.
SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
TRANSFORMER = {"base": (6, 512, 2048, 8), "small": (3, 256, 1024, 4)}
PRESETS = {
    "translate": TRANSFORMER,
    "decode": TRANSFORMER,
    "masked_lm": {"base": (12, 768, 3072, 12), "small": (4, 256, 1024, 4)},
    "classify": {"base": (4, 256, 1024, 4)},
}


class FusedAttention(MultiheadAttention):
    """Replacement for fairseq's ``MultiheadAttention`` that calls torch's ``scaled_dot_product_attention``.

    The projections and the dropout of the replaced module are reused. Incremental decoding is not supported,
    and the only ``attn_mask`` supported is the causal mask.
    """

    def __init__(self, attention: MultiheadAttention):
        super().__init__(attention.embed_dim, attention.num_heads)
        for name, module in attention.named_children():
            setattr(self, name, module)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Tuple[Tensor, None]:
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (split_heads(x, self.num_heads) for x in projected)
        padding, later = masks.get("key_padding_mask"), masks.get("attn_mask")
        mask = None if padding is None else ~padding.bool()[:, None, None, :]
        if mask is not None and later is not None:
            mask = mask & (later == 0)
        dropout, causal = dropout_probability(self.dropout_module), mask is None and later is not None
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.out_proj(merge_heads(output)), None


def set_on_modules(kind: type, name: str, value: Callable[[Any], Any], model: nn.Module) -> None:
    """Set the attribute ``name`` of each module of class ``kind`` in a model to ``value(module)``."""
    for child in model.modules():
        if isinstance(child, kind):
            setattr(child, name, value(child))


def use_fused_attention(model: nn.Module) -> None:
    """Replace each fairseq attention module with :class:`FusedAttention`. Parameter names do not change."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, MultiheadAttention):
                setattr(parent, name, FusedAttention(child))


# Compute fairseq's attention with explicit weights. fairseq does so if it skips the check of the widths.
use_explicit_weights = partial(set_on_modules, MultiheadAttention, "skip_embed_dim_check", lambda child: True)
# Compute the peers' attention with naive implementations.
use_definitions = partial(set_on_modules, PeerAttention, "attend", lambda child: child.attend_naively)


@contextmanager
def absorb_projections_everywhere() -> Iterator[None]:
    """Context manager in which Luna projects its packed sequence P instead of the tokens.

    Outside the context, Luna does so only for long sentences, for which this is faster.
    """
    with force_forms(("pack=absorbed", "unpack=absorbed", "pack-weights=absorbed")):
        yield


@contextmanager
def explicit_attention_everywhere() -> Iterator[None]:
    """Context manager in which all attention uses its definition: projected tokens, explicit weights."""
    projected = ("pack=projected", "unpack=projected", "pack-weights=projected")
    with force_forms((*projected, "softmax=naive")), ExitStack() as stack:
        if hasattr(torch.nn, "attention"):
            stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        yield


@lru_cache(maxsize=None)
def build_dictionary(size: int) -> Dictionary:
    """Build a dictionary of ``size`` entries, with the words "w0", "w1" and so on."""
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return dictionary


@dataclass(frozen=True)
class ModelVariant:
    """Model to measure in the benchmarks of complete models.

    Attributes:
        architectures: value of fairseq's ``--arch`` for each task ("translate", "decode", "masked_lm" or
            "classify"). The model is skipped in other tasks.
        options: model options and their values, in addition to the model sizes.
        change: function that modifies the model after it is built.
        peer: True to print the speedup of every model over this one.
        optional: True to measure the model only if ``--with`` selects it.
        dtype: data type of the model. "" selects ``--dtype``.
    """

    architectures: Names
    options: Mapping[str, Any] = field(default_factory=dict)
    change: Change = None
    peer: bool = False
    optional: bool = False
    dtype: str = ""

    def reference(self) -> "ModelVariant":
        """Return this model with naive attention, whose results serve as a reference."""
        options = {**self.options, "luna_backend": "naive", "torch_compile": False}
        return replace(self, options=options, change=use_definitions)


def luna_variant(
    architectures: Names, untied: bool = False, change: Change = None, **options: Any
) -> ModelVariant:
    """Return a benchmark variant: Luna models with the given model ``options``.

    If ``change`` or ``options`` are given, the models are measured only if ``--with`` selects them.
    """
    optional = bool(options or change)
    return ModelVariant(architectures, {"untie_luna_kv": untied, **options}, change, optional=optional)


def peer_variant(attention: str, **options: Any) -> ModelVariant:
    """Return a benchmark variant: Transformers with an efficient attention mechanism, such as "linformer".

    Only ``--with`` selects the variant. Translation also requires causal attention and cross-attention.
    """
    architectures = {"classify": "peer_lra_imdb", "masked_lm": "peer_roberta"}
    if set(ROLES) <= set(ATTENTIONS[attention].roles):
        architectures.update(PEER_TRANSLATION)
    return ModelVariant(architectures, {"attention": attention, **options}, optional=True)


PLAIN = {"translate": "luna", "decode": "luna", "masked_lm": "luna_masked_lm"}
ANCHORED = {"translate": "luna_anchored", "decode": "luna_anchored"}
PEER_TRANSLATION = {"translate": "peer_transformer", "decode": "peer_transformer"}
INT8 = {"decode": "peer_transformer"}
TEXT = {"classify": "transformer_lra_imdb"}
# Models in the order of the output. {l} stands for each --projection-length.
MODELS: Dict[str, ModelVariant] = {
    "transformer": ModelVariant({"translate": "transformer", "decode": "transformer"}, peer=True),
    "transformer-softmax": ModelVariant(TEXT, change=use_explicit_weights, peer=True),
    "transformer-sdpa": ModelVariant(
        {"translate": "transformer", **TEXT}, change=use_fused_attention, peer=True
    ),
    "roberta-softmax": ModelVariant({"masked_lm": "roberta"}, change=use_explicit_weights, peer=True),
    "roberta-sdpa": ModelVariant({"masked_lm": "roberta"}, change=use_fused_attention, peer=True),
    **{f"peer-{name}": peer_variant(name) for name in ATTENTIONS},
    "peer-softmax-alibi": peer_variant("softmax", alibi=True),
    # The distance penalties of the anchored model.
    "peer-softmax-penalties": replace(
        peer_variant("softmax", alibi=True, diagonal_prior=True), architectures=PEER_TRANSLATION
    ),
    # fairseq's attention cannot be quantised, because it reads its weights directly. The peer's attention
    # can.
    "peer-softmax-int8": replace(peer_variant("softmax"), architectures=INT8, change=quantise),
    "luna-{l}-tied": luna_variant(PLAIN),
    "luna-{l}-untied": luna_variant(PLAIN, untied=True),
    "transformer-bfloat16": ModelVariant({"translate": "transformer"}, dtype="bfloat16", optional=True),
    "luna-{l}-bfloat16": replace(luna_variant({"translate": "luna"}), dtype="bfloat16", optional=True),
    # Each architecture chooses tied or separate keys and values. Those of Long Range Arena are separate.
    "luna-{l}-anchored": ModelVariant(
        {**ANCHORED, "masked_lm": "luna_anchored_base_512", "classify": "luna_anchored_lra_imdb"}
    ),
    "luna-{l}-no-look-up": luna_variant(ANCHORED, packed_lookup=0),
    "luna-{l}-softmax-cross": luna_variant(ANCHORED, packed_lookup=0, cross_attention="softmax"),
    "luna-{l}-compiled": luna_variant(PLAIN, torch_compile=True),
    "luna-{l}-int8": luna_variant({"decode": "luna"}, change=quantise),
    "luna-{l}-bf16": luna_variant({"decode": "luna"}, change=use_bfloat16),
    "luna-{l}-chunk": luna_variant(PLAIN, luna_backend="chunk"),
    "luna-{l}-parallel": luna_variant(PLAIN, luna_backend="parallel"),
    "luna-{l}-triton": luna_variant(PLAIN, luna_backend="triton"),
    "luna-{l}": luna_variant({"classify": "luna_lra_imdb"}, untied=True),
}


class ModelTask(Task):
    """Base class of benchmarks that run complete models. All models of a benchmark have equal sizes.

    Attributes:
        task: type of model to build: "translate", "decode", "masked_lm" or "classify".
    """

    task: str
    options = {
        "--preset": choice_option("base", "small", help="size of the models"),
        "--dictionary-size": dict(
            type=Number(int, least=5),
            metavar="N",
            help="number of entries of the dictionary (default: 32000, or 260 for bytes)",
        ),
        "--dtype": choice_option("float32", "bfloat16", "float16", help="data type of the models"),
    }

    @property
    def model_sizes(self) -> Dict[str, int]:
        """Size options of all models without ``encoder_`` or ``decoder_``, such as ``{"layers": 6}``."""
        presets, preset = PRESETS[self.task], self.args.preset
        if preset not in presets:
            raise InputError(f"--preset {preset}: --task {self.task} has only {', '.join(presets)}")
        return dict(zip(SIZES, presets[preset]))

    @property
    def dictionary_size(self) -> int:
        """Number of dictionary entries, by default 260 for classifiers and 32000 for other models."""
        return self.args.dictionary_size or (260 if self.task == "classify" else 32000)

    def dictionary(self) -> Dictionary:
        """Return the dictionary of both source and target. Its words are "w0", "w1" and so on."""
        return build_dictionary(self.dictionary_size)

    def fairseq_task(self, T: int) -> Any:
        """Create the fairseq translation task from which a model is built, with at most T positions."""
        dictionary = self.dictionary()
        task = TranslationTask(TranslationConfig(), dictionary, dictionary)
        task.max_positions, task.pairs = lambda: T, False
        return task

    def variants(self) -> Dict[str, ModelVariant]:
        """Return the models to measure, with their names. Luna occurs once per ``--projection-length``."""
        found = {}
        for length in self.args.projection_length:
            lengths = {"projection_length": length, "encoder_projection_length": length}
            for name, variant in MODELS.items():
                if self.task in variant.architectures:
                    found[name.format(l=length)] = replace(variant, options={**lengths, **variant.options})
        return found

    def skip_reason(self, variant: ModelVariant, case: Case) -> str:
        if variant.change is use_bfloat16 and not has_bfloat16_products():
            return "this CPU has no products in bfloat16"
        if variant.options.get("luna_backend") == "triton":
            head_width = self.model_sizes["embed_dim"] // self.model_sizes["attention_heads"]
            dtype = DTYPES[variant.dtype or self.args.dtype]
            length = variant.options["projection_length"]
            return why_not_triton(torch.device(self.args.device), dtype, head_width, length)
        return missing_sdpa() if variant.change is use_fused_attention else ""

    def common_options(self, T: int, dropout: float) -> Dict[str, Any]:
        """Return the options shared by all models of this benchmark's task, for sequences of T tokens."""
        options = {f"encoder_{name}": number for name, number in self.model_sizes.items()}
        if self.task not in ("translate", "decode"):
            positions = T if self.task == "masked_lm" else max(1024, T)
            return {**options, "dropout": dropout, "attention_dropout": dropout, "max_positions": positions}
        options.update({f"decoder_{name}": number for name, number in self.model_sizes.items()})
        options.update({f"max_{side}_positions": max(1024, T + 2) for side in ("source", "target")})
        return {**options, "dropout": dropout, "share_all_embeddings": True}

    def make_model(self, variant: ModelVariant, T: int, dropout: float = 0.1) -> BaseFairseqModel:
        """Build a randomly initialized model in training mode, for sentences of T tokens."""
        torch.manual_seed(self.args.seed)
        architecture = variant.architectures[self.task]
        options = Namespace(**{**self.common_options(T, dropout), **variant.options})
        ARCH_CONFIG_REGISTRY[architecture](options)
        model = ARCH_MODEL_REGISTRY[architecture].build_model(options, self.fairseq_task(T))
        if variant.change is not None:
            variant.change(model)
        return model.to(self.args.device, DTYPES[variant.dtype or self.args.dtype]).train()

    def random_sentences(self, batch: BatchSize) -> Tensor:
        """Create a batch of random sentences [sentences, T], which end with the end-of-sentence token."""
        dictionary = self.dictionary()
        tokens = torch.randint(dictionary.nspecial, len(dictionary), tuple(batch), device="cpu")
        tokens[:, -1] = dictionary.eos()
        return tokens if self.args.device == "meta" else tokens.to(self.args.device)

    def describe(self) -> str:
        """Return the sizes and options shared by all models, as one line."""
        values = ", ".join(f"{name} {value}" for name, value in self.model_sizes.items())
        dictionary = f"dictionary {self.dictionary_size} (one embedding for all)"
        return f"{self.task}: {values}, {dictionary}, {super().describe()}"
