"""Small causal language models and classifiers, and a loss for each kind of model."""

from argparse import Namespace

import tiny_luna
import tiny_masked_lm
import torch
from tiny_luna import EOS, PAD, batch, build_perturbed, dictionary, example, sentences
from torch.nn.functional import cross_entropy

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.models import LunaClassifier, LunaLanguageModel
from luna_fairseq.models.sequence_encoder import PixelEmbedding
from luna_fairseq.models.softmax_ablation import LunaSoftmaxCausal
from luna_fairseq.modules.memory import map_tensors

LM_OPTIONS = {
    "decoder_embed_dim": 12,
    "decoder_ffn_embed_dim": 20,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "projection_length": 5,
    "dropout": 0.0,
    "max_target_positions": 30,
}
LM_VARIANTS = {
    "tied": {},
    "untied": {"untie_luna_kv": True},
    "pre-norm": {"decoder_normalize_before": True},
    "elu": {"pack_activation": "elu"},
    "decay": {"causal_decay": True},
    "adaptive input": {"adaptive_input": True, "adaptive_input_cutoff": "8,14", "adaptive_input_factor": 2.0},
    "learned positions": {"decoder_learned_pos": True, "share_decoder_input_output_embed": True},
}
CLASSIFIER_OPTIONS = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_projection_length": 5,
    "classifier_out_dim": 7,
    "sentence_class_num": 4,
    "max_positions": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
CLASSIFIER_VARIANTS = {
    "cls": {},
    "mean": {"sen_rep_type": "mp"},
    "P": {"use_p": True},
    "P, one layer": {"use_p": True, "encoder_layers": 1},
    "P, tied layers": {"use_p": True, "tie_layer_weights": True},
    "P, tied pre-norm": {"use_p": True, "tie_layer_weights": True, "encoder_normalize_before": True},
    "tied layers": {"tie_layer_weights": True, "encoder_layers": 3},
    "untied kv": {"untie_luna_kv": True},
    "pre-norm": {"encoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True},
    "twin": {"layer_type": "transformer"},
    "twin, mean": {"layer_type": "transformer", "sen_rep_type": "mp"},
    "twin, tied layers": {"layer_type": "transformer", "tie_layer_weights": True},
}
SOFTMAX_VARIANTS = {
    name: tiny_luna.VARIANTS[name] for name in ("tied", "untied pre-norm", "non-contextual", "fixed length")
}


def language_model(dtype=torch.float64, **options):
    return build_perturbed(LunaLanguageModel, {**LM_OPTIONS, **options}, tiny_luna.Task(23, 23), dtype)


def classifier(dtype=torch.float64, pixels=False, pairs=False, **options):
    task = Namespace(source_dictionary=None if pixels else dictionary(23), pairs=pairs)
    return build_perturbed(LunaClassifier, {**CLASSIFIER_OPTIONS, **options}, task, dtype)


def softmax_causal(**options):
    return build_perturbed(LunaSoftmaxCausal, {**tiny_luna.OPTIONS, **options}, tiny_luna.Task())


def beam_search(model, source, beam, **options):
    """Return the hypotheses of fairseq's beam search for source tokens [B, S]."""
    generator = SequenceGenerator([model], model.decoder.dictionary, beam_size=beam, **options)
    lengths = source.ne(PAD).sum(dim=1)
    return generator.generate([model], {"net_input": {"src_tokens": source, "src_lengths": lengths}})


def lprobs_of(model, tokens, *source):
    """Return the log-probabilities [T] of tokens [T] in one call of the model, and its extra outputs.

    The tokens end with EOS.
    """
    previous = tokens.roll(1).index_fill(0, torch.tensor([0]), EOS)[None]
    with torch.no_grad():
        logits, extra = model(*source, previous)
    return logits[0].log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1), extra


def kept_state(incremental_state):
    """Return the decoder's state in fairseq's incremental state."""
    (entry,) = incremental_state.values()
    return entry.state


def tensors_of(state):
    """Return each tensor of a nested named tuple."""
    found = []
    map_tensors(found.append, state)
    return found


def translation_loss(model):
    source, target = example()
    source, target = batch(source, left=True), batch(target)
    logits, _ = model(source, None, target)
    return cross_entropy(logits.flatten(0, 1), target.roll(-1, dims=1).flatten(), ignore_index=PAD)


def language_model_loss(model):
    tokens = batch(sentences((9, 4, 6), 23))
    logits, _ = model(tokens)
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)


def masked_lm_loss(model):
    """Return the loss of every third token, or of the classes if the model has a classification head."""
    tokens = batch([[tiny_masked_lm.BOS, *words] for words in sentences((9, 4, 6, 2), 22)])
    heads = list(model.classification_heads)
    if heads:
        return cross_entropy(model(tokens, classification_head_name=heads[0])[0], torch.tensor([0, 1, 2, 1]))
    masked = tokens.ne(PAD) & (torch.arange(tokens.size(1)) % 3 == 1)
    return cross_entropy(model(tokens, masked_tokens=masked)[0], tokens[masked])


def classifier_loss(model):
    tokens = batch(sentences((9, 4, 6, 2), 23))
    if isinstance(model.encoder.embed_tokens, PixelEmbedding):
        tokens = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)).to(model.classifier[0].weight)
    return cross_entropy(model(tokens), torch.tensor([0, 1, 2, 1]))


def loss_and_gradients(loss_of, model, seed=0):
    """Return ``loss_of(model)`` and its gradients by parameter name, with ``seed`` for random numbers."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
