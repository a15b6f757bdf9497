"""Whole models of one size: the rows of ``train``, ``lra`` and ``decode``, and batches of random tokens."""

import sys
from argparse import Namespace
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import luna_fairseq.models  # noqa: F401  (registers the architectures)
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.modules import MultiheadAttention
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.attention import luna_attention, why_no_sdpa, written_out
from luna_fairseq.benchmark.task import DTYPES, BatchSize, Case, Task, choice
from luna_fairseq.commands.arguments import Number
from luna_fairseq.errors import InputError
from luna_fairseq.models.int8 import quantise
from luna_fairseq.modules.heads import dropout_probability, merge_heads, split_heads
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.attention import FORMS, PeerAttention

Names = Mapping[str, str]
Change = Optional[Callable[[nn.Module], None]]
# Layers, and their width, that of feed-forward, heads.
SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
TRANSFORMER = {"base": (6, 512, 2048, 8), "small": (3, 256, 1024, 4)}
PRESETS = {
    "translate": TRANSFORMER,
    "decode": TRANSFORMER,
    "masked_lm": {"base": (12, 768, 3072, 12), "small": (4, 256, 1024, 4)},
    "classify": {"base": (4, 256, 1024, 4)},
}


class FusedAttention(MultiheadAttention):
    """fairseq's attention of whole sequences through scaled_dot_product_attention, with the masks that keep
    its fused kernels; ``attn_mask`` can only be the causal one."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tuple[Tensor, None]:
        """query [T, B, C], key and value [S, B, C], key_padding_mask [B, S] -> output [T, B, C]."""
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        q, k, v = (split_heads(x, self.num_heads) for x in projected)
        padding, later = given.get("key_padding_mask"), given.get("attn_mask")
        mask = None if padding is None else ~padding.bool()[:, None, None, :]
        if mask is not None and later is not None:
            mask = mask & (later == 0)
        dropout, causal = dropout_probability(self.dropout_module), mask is None and later is not None
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.out_proj(merge_heads(output)), None


def of_each(kind: type, name: str, value: Callable[[Any], Any], model: nn.Module) -> None:
    """Give every module of a kind an attribute."""
    for child in model.modules():
        if isinstance(child, kind):
            setattr(child, name, value(child))


# fairseq's attentions: by torch's fused function, with the same parameters under the same names; with their
# weights written out, as they do where widths are not to be checked. The peers': by what defines them.
use_fused_attention = partial(of_each, MultiheadAttention, "__class__", lambda child: FusedAttention)
write_weights_out = partial(of_each, MultiheadAttention, "skip_embed_dim_check", lambda child: True)
use_definitions = partial(of_each, PeerAttention, "attend", lambda child: child.attend_naively)


@contextmanager
def attention_written_out() -> Iterator[None]:
    """Within it Luna's attention writes its weights out, and torch's does as its definition says."""
    with ExitStack() as stack:
        if hasattr(torch.nn, "attention"):
            stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        for name, module in list(sys.modules.items()):
            if name.startswith("luna_fairseq.") and vars(module).get("luna_attention") is luna_attention:
                stack.enter_context(mock.patch.object(module, "luna_attention", written_out))
        yield


@dataclass(frozen=True)
class Model:
    """A row: fairseq's name of it in each task where it is one, what its command line has besides sizes, the
    last change to the built model; for ``peer`` and ``optional`` see the package."""

    architectures: Names
    options: Mapping[str, Any] = field(default_factory=dict)
    change: Change = None
    peer: bool = False
    optional: bool = False

    def definition(self) -> "Model":
        """The row that it must equal, within :func:`attention_written_out`."""
        options = {**self.options, "luna_backend": "naive", "torch_compile": False}
        return replace(self, options=options, change=use_definitions)


def luna(architectures: Names, untied: bool = False, change: Change = None, **options: Any) -> Model:
    """Luna; rows with a change or options of their own are optional."""
    optional = bool(options or change)
    return Model(architectures, {"untie_luna_kv": untied, **options}, change, optional=optional)


def peer(attention: str, **options: Any) -> Model:
    """The Transformer with that attention, and options of it; an encoder-decoder where it has every form."""
    architectures = {"classify": "peer_lra_imdb", "masked_lm": "peer_roberta"}
    if set(FORMS) <= set(ATTENTIONS[attention].forms):
        architectures.update(translate="peer_transformer", decode="peer_transformer")
    return Model(architectures, {"attention": attention, **options}, optional=True)


PLAIN = {"translate": "luna", "decode": "luna", "masked_lm": "luna_masked_lm"}
ANCHORED = {"translate": "luna_anchored", "decode": "luna_anchored"}
INT8 = {"decode": "peer_transformer"}
TEXT = {"classify": "transformer_lra_imdb"}
# Sorted within a task as they stand here; {l} makes a row for every --projection-length.
MODELS: Dict[str, Model] = {
    "transformer": Model({"translate": "transformer", "decode": "transformer"}, peer=True),
    "transformer-softmax": Model(TEXT, change=write_weights_out, peer=True),
    "transformer-sdpa": Model({"translate": "transformer", **TEXT}, change=use_fused_attention, peer=True),
    "roberta-softmax": Model({"masked_lm": "roberta"}, change=write_weights_out, peer=True),
    "roberta-sdpa": Model({"masked_lm": "roberta"}, change=use_fused_attention, peer=True),
    **{f"peer-{name}": peer(name) for name in ATTENTIONS},
    "peer-softmax-alibi": peer("softmax", alibi=True),
    # fairseq's own attention reads its weights by itself.
    "peer-softmax-int8": replace(peer("softmax"), architectures=INT8, change=quantise),
    "luna-{l}-tied": luna(PLAIN),
    "luna-{l}-untied": luna(PLAIN, untied=True),
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
    """A job of whole models of one size: those of the table that have an architecture for its ``task``."""

    task: str
    options = {
        "--preset": choice("base", "small", what="size of the models; "),
        "--dictionary-size": dict(
            type=Number(int, least=5), metavar="N", help="(default: 32000, of bytes 260)"
        ),
        "--dtype": choice("float32", "bfloat16", "float16"),
    }

    @property
    def sizes(self) -> Dict[str, int]:
        """Of all models."""
        presets, preset = PRESETS[self.task], self.args.preset
        if preset not in presets:
            raise InputError(f"--preset {preset}: --task {self.task} has only {', '.join(presets)}")
        return dict(zip(SIZES, presets[preset]))

    @property
    def types(self) -> int:
        """Entries of the dictionary; by default 32,000, or every byte and fairseq's four special symbols."""
        return self.args.dictionary_size or (260 if self.task == "classify" else 32000)

    def dictionary(self) -> Dictionary:
        """One for source and target."""
        dictionary = Dictionary()
        for i in range(self.types - len(dictionary)):
            dictionary.add_symbol(f"w{i}")
        return dictionary

    def fairseq_task(self, T: int) -> Any:
        """What models of so many positions are built for."""
        dictionary = self.dictionary()
        task = TranslationTask(TranslationConfig(), dictionary, dictionary)
        task.max_positions, task.pairs = lambda: T, False
        return task

    def rows(self) -> Dict[str, Model]:
        found = {}
        for length in self.args.projection_length:
            of_length = {"projection_length": length, "encoder_projection_length": length}
            for name, row in MODELS.items():
                if self.task in row.architectures:
                    found[name.format(l=length)] = replace(row, options={**of_length, **row.options})
        return found

    def why_not(self, row: Model, case: Case) -> str:
        return why_no_sdpa() if row.change is use_fused_attention else ""

    def of_model(self, T: int, dropout: float) -> Dict[str, Any]:
        """What all models have in common, under fairseq's names."""
        of_side = {f"encoder_{name}": number for name, number in self.sizes.items()}
        if self.task not in ("translate", "decode"):
            positions = T if self.task == "masked_lm" else max(1024, T)
            return {**of_side, "dropout": dropout, "attention_dropout": dropout, "max_positions": positions}
        of_side.update({f"decoder_{name}": number for name, number in self.sizes.items()})
        of_side.update({f"max_{side}_positions": max(1024, T + 2) for side in ("source", "target")})
        return {**of_side, "dropout": dropout, "share_all_embeddings": True}

    def make_model(self, row: Model, T: int, dropout: float = 0.1) -> BaseFairseqModel:
        """A model with random weights for sentences of that length, in training mode."""
        torch.manual_seed(self.args.seed)
        architecture = row.architectures[self.task]
        options = Namespace(**{**self.of_model(T, dropout), **row.options})
        ARCH_CONFIG_REGISTRY[architecture](options)
        model = ARCH_MODEL_REGISTRY[architecture].build_model(options, self.fairseq_task(T))
        if row.change is not None:
            row.change(model)
        return model.to(self.args.device, DTYPES[self.args.dtype]).train()

    def random_sentences(self, batch: BatchSize) -> Tensor:
        """Random tokens [B, T], EOS last."""
        dictionary = self.dictionary()
        tokens = torch.randint(dictionary.nspecial, len(dictionary), tuple(batch), device="cpu")
        tokens[:, -1] = dictionary.eos()
        return tokens if self.args.device == "meta" else tokens.to(self.args.device)

    def describe(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
        return f"{self.task}: {values}, dictionary {self.types} (one embedding for all), {super().describe()}"
