"""Invalid options give a one-line error when they are parsed."""

import contextlib
import multiprocessing
import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq_cli import hydra_train
from luna_fairseq.checks.options import check_config, check_options
from luna_fairseq.engine.entry_points import _check_and_apply_preset
from luna_fairseq.errors import InputError

TRAIN = {"max_update": 0}
GENERATE = {"beam": 5, "nbest": 1, "temperature": 1.0, "min_len": 1, "max_len_b": 200, "path": "x.pt"}
GENERATE.update(replace_unk=None)
PROMPTS = {**GENERATE, "task": "language_modeling", "sample_break_mode": "eos"}
INTERACTIVE = {**GENERATE, "buffer_size": 0}
EVAL_LM = {"path": "x.pt", "context_window": 0}
WIDTHS = {"decoder_embed_dim": 32, "encoder_embed_dim": 32}
CRITERION = "label_smoothed_cross_entropy_with_alignment"
ADAPTIVE_SOFTMAX = {"adaptive_softmax_cutoff": "8,14", "adaptive_softmax_factor": 2.0}


@pytest.mark.parametrize(
    "given, message",
    [
        ({"arch": "luna", "dropout": 1.5}, "--dropout 1.5: must be at least 0 and below 1"),
        ({"arch": "luna_lm", "word_dropout": -0.1}, "--word-dropout -0.1: must be at least 0"),
        ({"arch": "peer_transformer", "attention_dropout": float("nan")}, "--attention-dropout nan: must be"),
        ({"optimizer": "apollo", "clip_norm": -1.0}, "--clip-norm -1: must be at least 0"),
        (
            {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "linear"},
            "--criterion label_smoothed_cross_entropy_with_alignment needs weights over the source",
        ),
        (
            {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "attention": "linear"},
            "--criterion label_smoothed_cross_entropy_with_alignment needs weights over the source",
        ),
        (
            {**TRAIN, "arch": "peer_roberta", "diagonal_prior": True},
            "--diagonal-prior has no effect on a model of the kind peer_roberta. Leave it out",
        ),
        (
            {**TRAIN, "arch": "peer_lra_imdb", "sentence_diagonal": True},
            "--sentence-diagonal has no effect on a model of the kind peer_lra. Leave it out",
        ),
        (
            {**TRAIN, "arch": "peer_roberta", "attention": "linear", "alibi": True},
            "--alibi has no effect without --attention softmax. Give that, or leave --alibi out",
        ),
        (
            {**TRAIN, "arch": "transformer_lra_imdb", "layer_type": "transformer", "untie_luna_kv": True},
            "--untie-luna-kv has no effect with --layer-type transformer. Leave one of them out",
        ),
        (
            {**TRAIN, "arch": "lra", "layer_type": "transformer", "encoder_projection_length": 32},
            "--encoder-projection-length has no effect with --layer-type transformer.",
        ),
        (
            {**TRAIN, "arch": "luna_lra_imdb", "use_p": True, "sen_rep_type": "mp"},
            "--sen-rep-type has no effect with --use-p. Leave one of them out",
        ),
        (
            {**TRAIN, "arch": "peer_transformer", "attention": "linear", "alibi": True},
            "--alibi has no effect without --attention softmax or --decoder-attention softmax.",
        ),
        (
            {**TRAIN, "arch": "peer_lm", "rfa_gate": True},
            "--rfa-gate has no effect without --decoder-attention rfa.",
        ),
        (
            {**TRAIN, "arch": "luna_softmax_causal", "causal_decay": True},
            "--causal-decay has no effect on a model of the kind luna_softmax_causal. Leave it out",
        ),
        (
            {**TRAIN, "arch": "luna_softmax_causal", "pack_activation": "elu"},
            "--pack-activation has no effect on a model of the kind luna_softmax_causal. Leave it out",
        ),
        (
            {**TRAIN, "arch": "luna_softmax_causal", "luna_backend": "naive"},
            "--luna-backend has no effect on a model of the kind luna_softmax_causal. Leave it out",
        ),
        (
            {**TRAIN, "arch": "luna_anchored", "encoder_embed_dim": 32, "decoder_input_dim": 16},
            "--decoder-input-dim has no effect on a model of the kind luna. Leave it out",
        ),
        (
            {**TRAIN, "arch": "peer_transformer", "decoder_input_dim": 16},
            "--decoder-input-dim has no effect on a model of the kind peer_transformer.",
        ),
        (
            {**TRAIN, "arch": "luna", "encoder_learned_pos": True, "no_token_positional_embeddings": True},
            "--encoder-learned-pos has no effect with --no-token-positional-embeddings. Leave one",
        ),
        (
            {**TRAIN, "arch": "luna_lm", "decoder_learned_pos": True, "no_token_positional_embeddings": True},
            "--decoder-learned-pos has no effect with --no-token-positional-embeddings.",
        ),
        (
            {**TRAIN, "arch": "luna", "quant_noise_pq_block_size": 4},
            "--quant-noise-pq-block-size has no effect without --quant-noise-pq. Give that",
        ),
        (
            {**TRAIN, "arch": "luna_lm", "share_decoder_input_output_embed": True, **ADAPTIVE_SOFTMAX},
            "--share-decoder-input-output-embed has no effect with --adaptive-softmax-cutoff. Leave one",
        ),
        (
            {**TRAIN, "arch": "peer_transformer", "adaptive_softmax_factor": 2.0},
            "--adaptive-softmax-factor has no effect without --adaptive-softmax-cutoff. Give that",
        ),
        (
            {**TRAIN, "arch": "luna", "adaptive_softmax_dropout": 0.1},
            "--adaptive-softmax-dropout has no effect without --adaptive-softmax-cutoff. Give that",
        ),
        (
            {**TRAIN, "arch": "peer_lm", "adaptive_input": True, "tie_adaptive_proj": True},
            "--tie-adaptive-proj has no effect without --tie-adaptive-weights. Give that",
        ),
        (
            {**TRAIN, "arch": "peer_roberta", "information_block": True, "encoder_ffn_embed_dim": 80},
            "--encoder-ffn-embed-dim has no effect with --information-block. Leave one of them out",
        ),
        (
            {**TRAIN, "arch": "peer_lra_imdb", "information_block": True, "activation_fn": "relu"},
            "--activation-fn has no effect with --information-block. Leave one of them out",
        ),
        (
            {**TRAIN, "arch": "luna_tiny_512", "quant_noise_scalar": 0.1},
            "--quant-noise-scalar 0.1 does not work with learned positions",
        ),
        (
            {**TRAIN, "arch": "transformer_lra_pf32", "quant_noise_scalar": 0.1},
            "--quant-noise-scalar 0.1 does not work with learned positions",
        ),
        (
            {**TRAIN, "arch": "luna", "quant_noise_scalar": 0.1, "cpu": True},
            "--quant-noise-scalar 0.1 needs a GPU",
        ),
        (
            {**TRAIN, "arch": "luna", "anchor_strength": 8.0},
            "--anchor-strength has no effect without --anchored-packed. Give that, or leave",
        ),
        (
            {**TRAIN, "arch": "peer_transformer", "information_kernel": 4},
            "--information-kernel has no effect without --information-block. Give that, or leave",
        ),
        (
            {**TRAIN, "arch": "peer_transformer", "performer_features": 64},
            "--performer-features has no effect without --attention performer or --decoder-attention "
            "performer or --cross-attention performer.",
        ),
        (
            {**TRAIN, "arch": "linformer_encoder", "attention": "linear", "linformer_k": 16},
            "--linformer-k has no effect without --attention linformer. Give that, or leave",
        ),
        (
            {**TRAIN, "arch": "peer_lm", "longformer_window": 8},
            "--longformer-window has no effect on a model of the kind peer_lm. Leave it out",
        ),
        (
            {**TRAIN, "arch": "peer_roberta", "attention": "synthesizer", "synthesizer_k": 4},
            "--synthesizer-k has no effect without --synthesizer-kind factorized-random. Give that",
        ),
        (
            {**TRAIN, "arch": "luna_lm", "adaptive_input_cutoff": "10,20"},
            "--adaptive-input-cutoff has no effect without --adaptive-input. Give that",
        ),
        (
            {**TRAIN, "arch": "luna_bert", "offload_activations": True},
            "--offload-activations has no effect without --checkpoint-activations. Give that",
        ),
        (
            {**WIDTHS, "share_all_embeddings": True, "decoder_output_dim": 16},
            "--decoder-output-dim 16 differs",
        ),
        (
            {"decoder_embed_dim": 32, "share_decoder_input_output_embed": True, "decoder_input_dim": 16},
            "--decoder-output-dim 32 differs from --decoder-input-dim 16",
        ),
        (
            {"decoder_embed_dim": 32, "decoder_input_dim": 16, "quant_noise_pq": 0.1},
            "--quant-noise-pq quantizes embeddings of the width --decoder-embed-dim 32",
        ),
        ({**PROMPTS, "sample_break_mode": "none"}, "fairseq-generate needs one prompt per line"),
        ({**PROMPTS, "add_bos_token": True}, "fairseq-generate mistakes the </s> of --add-bos-token"),
        ({**PROMPTS, "print_alignment": "hard"}, "--print-alignment is for translation"),
        ({**PROMPTS, "replace_unk": ""}, "--replace-unk is for translation"),
        ({**INTERACTIVE, "task": "streaming_lm", "constraints": "ordered"}, "--constraints is for transl"),
        ({**GENERATE, "task": "streaming_lm"}, "fairseq-generate needs one prompt per line"),
        ({**EVAL_LM, "distributed_world_size": 2}, "fairseq-eval-lm with 2 processes would print only"),
        (
            {**EVAL_LM, "task": "streaming_lm", "post_process": "subword_nmt"},
            "--task streaming_lm cannot count words",
        ),
        ({**EVAL_LM, "task": "streaming_lm", "num_shards": 2}, "--num-shards 2: --task streaming_lm reads"),
        (
            {**TRAIN, "task": "streaming_lm", "max_tokens": 4096, "batch_size": None},
            "--task streaming_lm trains on --batch-size streams",
        ),
        (
            {**TRAIN, "task": "streaming_lm", "batch_size": 2, "amp": True, "amp_batch_retries": 2},
            "--amp repeats a batch whose gradients overflow",
        ),
    ],
)
def test_invalid_options_are_refused(given, message):
    with pytest.raises(InputError) as error:
        check_options(Namespace(**given))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        {"arch": "luna", "dropout": 0, "activation_dropout": 0.99},
        {"arch": "transformer", "dropout": 1.5, "encoder_layers": 0},  # fairseq's own
        {"optimizer": "adam", "clip_norm": -1.0},
        {"arch": "luna", "encoder_layers": 1, "max_tokens": None, "encoder_layers_to_keep": "0,2"},
        {**TRAIN, "criterion": CRITERION, "arch": "luna", "cross_attention": "luna"},
        {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "softmax"},
        {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer"},
        {
            **TRAIN,
            "arch": "peer_transformer",
            "attention": "linear",
            "decoder_attention": "rfa",
            "rfa_gate": True,
        },
        {**TRAIN, "arch": "peer_transformer", "attention": "rfa", "rfa_gate": True},
        {**TRAIN, "arch": "peer_transformer", "cross_attention": "linear", "alibi": True},
        {**TRAIN, "arch": "peer_transformer", "diagonal_prior": True, "sentence_diagonal": True},
        {**TRAIN, "arch": "luna_lra_imdb", "layer_type": "transformer", "untie_luna_kv": True},
        {**TRAIN, "arch": "luna_lra_imdb", "encoder_projection_length": 32, "sen_rep_type": "mp"},
        {**TRAIN, "arch": "luna_lra_pf32", "use_p": True, "sen_rep_type": "mp"},
        {**TRAIN, "arch": "luna_softmax_causal", "projection_length": 8},
        {**TRAIN, "arch": "luna", "encoder_embed_dim": 32, "decoder_input_dim": 32},
        {**TRAIN, "arch": "luna", "share_all_embeddings": True, **ADAPTIVE_SOFTMAX},
        {**TRAIN, "arch": "luna", "share_all_embeddings": True, "share_decoder_input_output_embed": True},
        {**TRAIN, "arch": "luna_lm_small", **ADAPTIVE_SOFTMAX},  # its preset shares the embeddings
        {**TRAIN, "arch": "luna", "quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4},
        {**TRAIN, "arch": "peer_roberta_tiny", "information_block": True, "activation_fn": "relu"},
        {**TRAIN, "arch": "peer_transformer", "information_block": True, "encoder_ffn_embed_dim": 80},
        {"arch": "luna_lm", "adaptive_input": True, "decoder_input_dim": 16, "quant_noise_pq": 0.1},
        {**TRAIN, "arch": "luna_anchored", "anchor_strength": 8.0},
        {**TRAIN, "arch": "informer_encoder", "information_kernel": 4},
        {**TRAIN, "arch": "transformer_lra_imdb", "encoder_attention_heads": 2},
        {**TRAIN, "arch": "linformer_encoder", "attention": "linear"},  # its preset has --linformer-k 8
        {**TRAIN, "arch": "peer_lm", "decoder_attention": "local", "local_kind": "blocks"},
        {"arch": "peer_roberta", "diagonal_prior": True},  # a checkpoint of an earlier version
        {"arch": "luna_softmax_causal", "causal_decay": True},
        {**GENERATE, "task": "multilingual_translation"},
        {**WIDTHS, "decoder_output_dim": 16},
        {**WIDTHS, "share_all_embeddings": True, "decoder_input_dim": 512},
        {**WIDTHS, "share_all_embeddings": True, "decoder_output_dim": "32"},
        {"arch": "luna", "encoder_embed_dim": 32, "share_all_embeddings": True, "decoder_output_dim": "32"},
        {"encoder_embed_dim": 32, "share_all_embeddings": True, "decoder_output_dim": "32"},
        PROMPTS,
        {**INTERACTIVE, "task": "language_modeling", "add_bos_token": True},
        {**INTERACTIVE, "constraints": "ordered"},
        {**EVAL_LM, "num_shards": 2, "shard_id": 1, "distributed_world_size": 1},
        {**EVAL_LM, **TRAIN, "distributed_world_size": 2},
        {**EVAL_LM, "task": "streaming_lm", "max_tokens": 4096, "batch_size": None},
        {**TRAIN, "task": "streaming_lm", "batch_size": 2},
        {**TRAIN, "task": "streaming_lm", "batch_size": 2, "amp": True, "amp_batch_retries": 0},
        {**TRAIN, "amp": True, "amp_batch_retries": 2},
    ],
)
def test_valid_options_are_accepted(given):
    check_options(Namespace(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"arch": "luna"},
        {"arch": "peer_lm"},
        {"arch": "peer_roberta", "no_token_positional_embeddings": True},
    ],
)
def test_scalar_noise_is_accepted_on_a_gpu(given, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    check_options(Namespace(**TRAIN, **given, quant_noise_scalar=0.1))


CHECKPOINTED = {**TRAIN, "checkpoint_activations": True, "ddp_backend": "pytorch_ddp", "encoder_layers": 2}
LAYERWISE = {"arch": "peer_roberta", "attention": "linformer", "linformer_sharing": "layerwise"}


@pytest.mark.parametrize(
    "given, cause",
    [
        ({"arch": "luna", "find_unused_parameters": True}, "--find-unused-parameters"),
        ({"arch": "luna_lra_listop", "tie_layer_weights": True}, "--tie-layer-weights"),
        (LAYERWISE, "--linformer-sharing layerwise"),
        ({"arch": "luna_lra_imdb", "length_groups": 2}, "--length-groups 2"),
        ({"arch": "luna_lra_aan", "task": "lra-text"}, "pairs of sequences"),
    ],
)
def test_checkpointed_parameters_need_another_backend(given, cause, tmp_path):
    (tmp_path / "src1-bin").mkdir()
    given = {**CHECKPOINTED, **given, "data": str(tmp_path)}
    message = f"--checkpoint-activations with {cause} .*2 processes. Use --ddp-backend legacy_ddp"
    with pytest.raises(InputError, match=message):
        check_options(Namespace(**given, distributed_world_size=2))
    check_options(Namespace(**given, distributed_world_size=1))
    for other in ({"ddp_backend": "legacy_ddp"}, {"checkpoint_activations": False}):
        check_options(Namespace(**{**given, "distributed_world_size": 2, **other}))


def test_processes_of_torchrun_are_counted(monkeypatch):
    check_options(Namespace(**EVAL_LM))
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="fairseq-eval-lm .*4 processes"):
        check_options(Namespace(**EVAL_LM))


@pytest.mark.parametrize("spawned", [False, True])
def test_options_are_checked_under_hydra_and_in_its_processes(spawned, monkeypatch):
    hydra = SimpleNamespace(cli_main=hydra_train.cli_main)
    monkeypatch.setitem(sys.modules, "__main__", hydra)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if spawned else None)
    cfg = OmegaConf.create({"task": {"_name": "translation"}, "model": {"_name": "luna", "dropout": 2.0}})
    with pytest.raises(InputError, match="--dropout 2"):
        _check_and_apply_preset(lambda cfg: None, cfg)


def test_references_of_hydra_have_the_value_that_they_name():
    task = {"_name": "streaming_lm", "batch_size": "${dataset.batch_size}"}
    for size in (None, 4):
        cfg = OmegaConf.create({"dataset": {"batch_size": size}, "optimization": TRAIN, "task": task})
        with contextlib.nullcontext() if size else pytest.raises(InputError, match="Give --batch-size"):
            check_config(cfg)
