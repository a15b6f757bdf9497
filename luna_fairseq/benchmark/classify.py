"""The byte classifiers of ``train``: encoders of the size of Long Range Arena's text task, and their training step."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, Dict, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq.models.transformer import Embedding, TransformerConfig, base_architecture
from fairseq.models.transformer.transformer_encoder import TransformerEncoderBase
from luna_fairseq.benchmark.models import SDPA, Kind, luna_kinds, make_task, model_sizes, random_sentences
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.benchmark.peers import ATTENTIONS
from luna_fairseq.models.luna import nested_config
from luna_fairseq.modules import LunaEncoder

NOTES = (
    "Two-class classifiers of random bytes: an encoder, the mean over positions, a linear layer; forward pass in",
    "training mode (dropout 0.1), cross entropy, backward pass, no optimizer. transformer-softmax is fairseq's encoder",
    "with the attention weights written out, transformer-sdpa the same on scaled_dot_product_attention. No padding.",
    "Extra memory includes the gradients.",
)
SIZES = {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4}
# Every byte, and fairseq's four special symbols.
DICTIONARY = 260
SOFTMAX = "transformer-softmax"
PEERS = (SOFTMAX, SDPA)


def kinds(projection_lengths: Sequence[int]) -> Dict[str, Kind]:
    """The models by the names of the table's rows."""
    return {
        SOFTMAX: Kind(attention="written out"),
        SDPA: Kind(attention="fused"),
        **luna_kinds(projection_lengths),
    }


def definition(kind: Kind) -> Kind:
    """The kind whose loss and gradients must be the same."""
    return kind if kind.luna else Kind()


class Classifier(nn.Module):
    """Two classes from the mean of an encoder's output over the positions that are no padding."""

    def __init__(self, encoder: nn.Module, embed_dim: int, padding_idx: int):
        super().__init__()
        self.encoder = encoder
        self.padding_idx = padding_idx
        self.head = nn.Linear(embed_dim, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, 2]."""
        x = self.encoder(tokens)["encoder_out"][0]  # [T, B, C]
        included = tokens.ne(self.padding_idx).T.unsqueeze(-1)
        return self.head((x * included).sum(dim=0) / included.sum(dim=0))


def build(
    kind: Kind, preset: Dict[str, int], dictionary_size: int, batch: BatchSize, dropout: float = 0.1
) -> Classifier:
    """A classifier with random weights, in training mode."""
    dictionary = make_task(dictionary_size).source_dictionary
    sizes = model_sizes(preset, max(1024, batch.tokens), dropout)
    options = Namespace(**sizes, **kind.options())
    embed = Embedding(len(dictionary), preset["embed_dim"], dictionary.pad())
    if kind.luna:
        encoder = LunaEncoder(nested_config(options), dictionary, embed)
    else:
        base_architecture(options)
        encoder = TransformerEncoderBase(TransformerConfig.from_namespace(options), dictionary, embed)
    model = Classifier(encoder, preset["embed_dim"], dictionary.pad()).train()
    if kind.attention is not None:
        ATTENTIONS[kind.attention](model)  # last: a new module draws random numbers
    return model


def make_loss(
    model: Any, dictionary_size: int, batch: BatchSize, device: str, lengths: Sequence[int] = ()
) -> Callable[[], Tensor]:
    """The loss of a batch; arguments as in :func:`luna_fairseq.benchmark.translate.make_loss`."""
    dictionary = make_task(dictionary_size).source_dictionary
    tokens = random_sentences(dictionary, batch, device)
    for row, length in zip(tokens, lengths):
        row[length:] = dictionary.pad()
    labels = torch.arange(batch.sentences, device=device) % 2
    return partial(cross_entropy, model, tokens, labels)


def cross_entropy(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """The mean over the sentences."""
    return F.cross_entropy(model(tokens).float(), labels)
