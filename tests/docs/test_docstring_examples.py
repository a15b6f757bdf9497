"""The examples in docstrings run and print what they show."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "demo_corpus",
    "luna_fairseq.anchored.attention",
    "luna_fairseq.checks.bounds",
    "luna_fairseq.checks.names",
    "luna_fairseq.checks.same_training",
    "luna_fairseq.commands.arguments",
    "luna_fairseq.commands.recipes",
    "luna_fairseq.files.checksums",
    "luna_fairseq.files.regular",
    "luna_fairseq.files.same_run",
    *(
        f"luna_fairseq.huggingface.{name}"
        for name in (
            *("comparison", "configuration_luna", "decoder", "modeling_luna", "modeling_luna_classifier"),
            *(
                "modeling_luna_lm",
                "modeling_luna_translation",
                "shipped_code",
                "tokenization_luna_moses",
                "tokenizer",
            ),
        )
    ),
    "luna_fairseq.lra.listops",
    "luna_fairseq.lra.seeds",
    "luna_fairseq.masked_lm.finetuning.multiple_choice",
    "luna_fairseq.masked_lm.finetuning.settings",
    "luna_fairseq.models.architectures",
    "luna_fairseq.models.authors_checkpoint",
    "luna_fairseq.models.beams",
    "luna_fairseq.models.classification_heads",
    "luna_fairseq.models.fairseq_layers",
    "luna_fairseq.models.onednn_linear",
    "luna_fairseq.models.int8",
    "luna_fairseq.models.luna",
    "luna_fairseq.models.luna_classifier",
    "luna_fairseq.models.luna_lm",
    "luna_fairseq.models.luna_masked_lm",
    "luna_fairseq.models.masked_lm_hub",
    "luna_fairseq.models.options",
    "luna_fairseq.models.sequence_encoder",
    "luna_fairseq.models.softmax_ablation",
    "luna_fairseq.models.tokenizers",
    "luna_fairseq.modules.batch",
    "luna_fairseq.modules.luna_attention",
    "luna_fairseq.modules.luna_causal_attention",
    "luna_fairseq.modules.luna_decoder",
    "luna_fairseq.modules.luna_decoder_layer",
    "luna_fairseq.modules.luna_encoder",
    "luna_fairseq.modules.luna_layer",
    "luna_fairseq.modules.options",
    "luna_fairseq.modules.packed_embedding",
    "luna_fairseq.modules.state",
    "luna_fairseq.ops.attention",
    "luna_fairseq.ops.blocks",
    "luna_fairseq.ops.causal_luna",
    "luna_fairseq.ops.causal_luna.inputs",
    "luna_fairseq.ops.causal_luna.recurrent",
    "luna_fairseq.ops.chunks",
    "luna_fairseq.ops.masked_softmax",
    "luna_fairseq.ops.softmax",
    "luna_fairseq.optim.apollo",
    "luna_fairseq.optim.milestone_schedule",
    "luna_fairseq.peers.models",
    "luna_fairseq.peers.options",
    "luna_fairseq.peers.recurrent_attention",
    "luna_fairseq.peers.registry",
    "luna_fairseq.peers.rnn_attention_config",
    "luna_fairseq.progress",
    "luna_fairseq.report.attention",
    "luna_fairseq.report.loading",
    "luna_fairseq.report.logs",
    "luna_fairseq.report.options",
    "luna_fairseq.report.page",
    "luna_fairseq.requirements",
    "luna_fairseq.text.documents",
    "luna_fairseq.text.encoders",
    "luna_fairseq.translation.plot_alignments",
    "luna_fairseq.translation.scores",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if ".huggingface." in name:
        pytest.importorskip("transformers")
    failed, tried = doctest.testmod(import_module(name))
    assert tried and not failed
