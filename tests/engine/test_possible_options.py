"""Options that cannot be are refused in one line, when they are parsed."""

import multiprocessing
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_luna
import torch
from omegaconf import OmegaConf

import luna_fairseq.engine  # noqa: F401  mends fairseq
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.search import DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq_cli import hydra_train
from luna_fairseq.checks.names import check_optimizer_overrides
from luna_fairseq.checks.options import check_options
from luna_fairseq.checks.search import check_search
from luna_fairseq.engine.entry_points import without_the_metric
from luna_fairseq.engine.reading import _encoded
from luna_fairseq.errors import InputError

TRAIN = {"max_update": 0}
GENERATE = {"beam": 5, "nbest": 1, "temperature": 1.0, "min_len": 1, "max_len_b": 200, "path": "x.pt"}
GENERATE.update(replace_unk=None)
PROMPTS = {**GENERATE, "task": "language_modeling", "sample_break_mode": "eos"}
INTERACTIVE = {**GENERATE, "buffer_size": 0}
VALIDATE = {"path": "x.pt"}
EVAL_LM = {"path": "x.pt", "context_window": 0}
METRIC = {**TRAIN, "criterion": "masked_lm", "best_checkpoint_metric": "accuracy"}
WIDTHS = {"decoder_embed_dim": 32, "encoder_embed_dim": 32}
CRITERION = "label_smoothed_cross_entropy_with_alignment"
ALIGNED = {"load_alignments": True, "train_subset": "train"}
GPU = torch.cuda.is_available()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"dropout": 1.5}, "--dropout 1.5: a probability is between 0 and 1"),
        ({"word_dropout": -0.1}, "--word-dropout -0.1: a probability"),
        ({"attention_dropout": float("nan")}, "--attention-dropout nan: a probability"),
        ({"encoder_layers": -1}, "--encoder-layers -1: must be at least 0"),
        ({"decoder_attention_heads": 0}, "--decoder-attention-heads 0: must be at least 1"),
        ({"encoder_ffn_embed_dim": -4}, "--encoder-ffn-embed-dim -4: must be at least 1"),
        ({"update_freq": [2, 0]}, "--update-freq 0: must be at least 1"),
        ({"max_tokens": 0}, "--max-tokens 0: must be at least 1"),
        ({"clip_norm": -1.0}, "--clip-norm -1: must be at least 0"),
        ({**TRAIN, **ALIGNED, "data": str(Path(__file__).parent)}, "--load-alignments: "),
        (
            {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "linear"},
            "--criterion label_smoothed_cross_entropy_with_alignment needs weights over the source",
        ),
        ({"random_token_prob": -0.5, "leave_unmasked_prob": 0.6}, "--random-token-prob -0.5: a probability"),
        ({"mask_multiple_length": 0}, "--mask-multiple-length 0: must be at least 1"),
        ({**EVAL_LM, "softmax_batch": 0}, "--softmax-batch 0: must be at least 1"),
        ({**GENERATE, "sampling_topp": 2.0}, "--sampling-topp 2: a probability is at most 1"),
        ({**GENERATE, "prefix_size": -1}, "--prefix-size -1: must be at least 0"),
        ({"num_workers": -1}, "--num-workers -1: must be at least 0"),
        ({"seed": -1}, "--seed -1: must be at least 0 and below 2 to the 32nd"),
        ({"fixed_validation_seed": 2**32}, "--fixed-validation-seed 4294967296: must be at least 0 and"),
        ({**TRAIN, "log_interval": 0}, "--log-interval 0: must be at least 1"),
        ({**TRAIN, "profile": True}, "" if GPU else "--profile needs a GPU"),
        ({**TRAIN, "adam_betas": "0.9"}, "--adam-betas 0.9: give two numbers from 0 to below 1"),
        ({**TRAIN, "adam_betas": "(0.9, 1)"}, "--adam-betas (0.9, 1): give two numbers"),
        ({**TRAIN, "adam_betas": "x"}, "--adam-betas x: give two numbers"),
        ({"optimizer_overrides": "{x"}, "--optimizer-overrides {x is not a Python dictionary"),
        ({"eval_bleu_detok_args": "{x"}, "--eval-bleu-detok-args {x is not JSON"),
        ({**GENERATE, "task": "masked_lm"}, "--task masked_lm writes no text"),
        ({**INTERACTIVE, "task": "lra-text"}, "--task lra-text writes no text"),
        ({"save_dir": "a${x}b"}, "a${x}b: fairseq replaces what begins with ${"),
        ({**TRAIN, "fp16": True, "fp16_no_flatten_grads": True, "cpu": True}, "--fp16 needs a GPU"),
        ({**TRAIN, "memory_efficient_fp16": True, "cpu": True}, "--fp16 needs a GPU"),
        ({"quant_noise_scalar": 0.5}, "" if GPU else "--quant-noise-scalar needs a GPU"),
        ({"tpu": True}, "--tpu needs the package torch_xla"),
        (METRIC, "--best-checkpoint-metric accuracy: validation with --criterion masked_lm"),
        (
            {**METRIC, "best_checkpoint_metric": "bleu", "task": "translation"},
            "--best-checkpoint-metric bleu",
        ),
        ({"mask_prob": 0.0}, "--mask-prob 0: must be above 0 and below 1"),
        ({"leave_unmasked_prob": 0.6, "random_token_prob": 0.6}, "--leave-unmasked-prob and --random"),
        ({"mask_whole_words": True, "bpe": None}, "--mask-whole-words needs pieces that begin words"),
        ({"mask_whole_words": True, "bpe": "subword_nmt"}, "--mask-whole-words needs pieces"),
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
            "--quant-noise-pq quantizes tokens at --decoder-embed-dim 32",
        ),
        (
            {**TRAIN, "criterion": "cross_entropy", "adaptive_softmax_cutoff": "5", "arch": "luna_base"},
            "--adaptive-softmax-cutoff n",
        ),
        ({"criterion": "adaptive_loss"}, "--criterion adaptive_loss needs a model with adaptive softmax"),
        ({"eval_bleu_args": "{x"}, "--eval-bleu-args {x is not JSON"),
        ({"eval_bleu_args": '{"bem": 4}'}, "--eval-bleu-args: there is no option bem; nearest: beam"),
        (
            {"eval_bleu_detok": "moses", "eval_bleu_detok_args": '{"moses_no_escap": true}'},
            "--eval-bleu-detok-args: there is no option moses_no_escap; nearest: moses_no_escape",
        ),
        ({"model_overrides": "{x"}, "--model-overrides {x is not a Python dictionary"),
        ({"path": None}, "--path is missing"),
        ({**GENERATE, "beam": 0}, "--beam 0: must be at least 1"),
        ({**GENERATE, "sampling": True}, "--sampling needs --nbest 5"),
        ({**GENERATE, "temperature": 0}, "--temperature 0: must be above 0"),
        ({**GENERATE, "min_len": 300}, "--min-len 300 is above --max-len-b 200"),
        (
            {**GENERATE, "print_step": True, "task": "translation"},
            "--retain-iter-history and --print-step are",
        ),
        ({**GENERATE, "constraints": "ordered"}, "fairseq-generate reads no constraints"),
        ({**PROMPTS, "sample_break_mode": "none"}, "fairseq-generate goes on with one prompt a line"),
        ({**PROMPTS, "add_bos_token": True}, "fairseq-generate takes an </s> before the prompt for a part"),
        ({**PROMPTS, "print_alignment": "hard"}, "--print-alignment is for translation"),
        ({**PROMPTS, "replace_unk": ""}, "--replace-unk is for translation"),
        ({**INTERACTIVE, "task": "streaming_lm", "constraints": "ordered"}, "--constraints is for transl"),
        ({**GENERATE, "task": "streaming_lm"}, "fairseq-generate goes on with one prompt a line"),
        ({**EVAL_LM, "context_window": 8, "tokens_per_sample": 8}, "--context-window 8 must be below"),
        ({**EVAL_LM, "post_process": "sentencepiece"}, "fairseq-eval-lm joins no pieces"),
        ({**EVAL_LM, "distributed_world_size": 2}, "--distributed-world-size 2, or torchrun: fairseq-eval"),
        ({**EVAL_LM, "task": "streaming_lm", "num_shards": 2}, "--num-shards 2: --task streaming_lm reads"),
        ({**GENERATE, "num_shards": 2, "shard_id": 2}, "--shard-id 2: must be at least 0 and below"),
        (
            {**INTERACTIVE, "num_shards": 2},
            "--num-shards 2 divides the data of fairseq-generate and -eval-lm",
        ),
        ({**VALIDATE, "num_shards": 2}, "--num-shards 2 divides the data"),
    ],
)
def test_what_cannot_be(given, message):
    with pytest.raises(InputError) if message else pytest.MonkeyPatch.context() as error:
        check_options(Namespace(**given))
    assert str(error.value).startswith(message) if message else True


@pytest.mark.parametrize(
    "given",
    [
        # What fairseq runs.
        {"dropout": 1, "activation_dropout": 1.0, "label_smoothing": 1.0, "decoder_layers": 0},
        {"clip_norm": 0.0, "encoder_layers": 1, "max_tokens": None, "update_freq": [1, 2], "base_layers": 0},
        {"encoder_layers_to_keep": "0,2", "share_all_embeddings": False, "max_tokens_valid": "${x.y}"},
        {"mask_whole_words": True, "bpe": "sentencepiece"},
        {**METRIC, "best_checkpoint_metric": "ppl"},
        {**METRIC, "criterion": "lra_cross_entropy"},
        {**METRIC, "criterion": "cross_entropy", "best_checkpoint_metric": "bleu", "eval_bleu": True},
        {**TRAIN, "seed": 0, "adam_betas": "(0.9, 0.98)", "log_interval": 1, "optimizer_overrides": "{}"},
        {**TRAIN, "criterion": CRITERION, "arch": "luna", "cross_attention": "luna"},
        {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "softmax"},
        {**GENERATE, "task": "multilingual_translation"},
        {**WIDTHS, "decoder_output_dim": 16},
        {**WIDTHS, "share_all_embeddings": True, "decoder_input_dim": 512},
        {**GENERATE, "sampling": True, "nbest": 5},
        PROMPTS,
        {**INTERACTIVE, "task": "language_modeling", "add_bos_token": True},
        {**INTERACTIVE, "constraints": "ordered"},
        {**EVAL_LM, "num_shards": 2, "shard_id": 1, "distributed_world_size": 1},
        {**EVAL_LM, **TRAIN, "distributed_world_size": 2},
        {**TRAIN, "criterion": "composite_loss", "adaptive_softmax_cutoff": "5", "arch": "luna"},
        {**TRAIN, "criterion": "cross_entropy", "adaptive_softmax_cutoff": "5", "arch": "lstm"},
        {**TRAIN, "criterion": "adaptive_loss_of_ones_own", "adaptive_softmax_cutoff": "5", "arch": "luna"},
    ],
)
def test_what_can_be(given):
    check_options(Namespace(**given))


def test_processes_of_torchrun_count(monkeypatch):
    check_options(Namespace(**EVAL_LM))
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="^--distributed-world-size 4, or torchrun: "):
        check_options(Namespace(**EVAL_LM))


def test_options_that_become_what_is_meant():
    args = Namespace(**{**GENERATE, "num_shards": 2, "shard_id": 1, "replace_unk": "@@ "})
    for _ in range(2):
        check_options(args)
        assert (args.distributed_world_size, args.distributed_rank, args.replace_unk) == (2, 1, "")


@pytest.mark.parametrize(
    "parser, message",
    [
        (
            options.get_validation_parser,
            "--task is missing: give that of the training, such as --task translation",
        ),
        (options.get_training_parser, "--arch is missing: give a model, such as --arch luna_base"),
    ],
)
def test_a_command_without_a_task_or_a_model(parser, message):
    with pytest.raises(InputError) as error:
        options.parse_args_and_arch(parser(), ["data-bin"])
    assert str(error.value) == message


def test_a_metric_that_validation_has_not_this_time(caplog):
    cfg = SimpleNamespace(checkpoint=SimpleNamespace(best_checkpoint_metric="bleu"))
    stats = without_the_metric(None, cfg, SimpleNamespace(get_num_updates=lambda: 3), {"loss": 2.0})
    assert stats == {"loss": 2.0, "num_updates": 3, "bleu": None}
    assert "validation has no bleu, which --best-checkpoint-metric asks for, but loss" in caplog.text


def test_plain_text_for_a_dictionary_of_pieces(monkeypatch):
    """Before anything is translated; encoded text, words, and text with --bpe pass."""
    dictionary = Dictionary()
    dictionary.add_symbol("\u2581A")
    words, task = Dictionary(), SimpleNamespace(source_dictionary=dictionary)
    passed = lambda lines, cfg, task, *_: "passed"  # noqa: E731
    for line, bpe, known in (
        ("\u2581A x", None, dictionary),
        ("A", "sentencepiece", dictionary),
        ("A", None, words),
    ):
        there = SimpleNamespace(source_dictionary=known)
        assert _encoded(passed, [line], SimpleNamespace(bpe=bpe), there) == "passed"
    with pytest.raises(
        InputError, match="holds pieces of sentencepiece, and the text is plain: give --bpe sent"
    ):
        _encoded(passed, ["A man.\tMann"], SimpleNamespace(bpe=None), task)


@pytest.mark.parametrize("spawned", [False, True])
def test_hydra_and_the_processes_that_it_starts(spawned, monkeypatch):
    """Of which the one that starts the others sets up no task."""
    hydra = SimpleNamespace(cli_main=hydra_train.cli_main)
    monkeypatch.setitem(sys.modules, "__main__", hydra)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if spawned else None)
    cfg = OmegaConf.create({"task": {"_name": "translation"}, "model": {"_name": "luna", "dropout": 2.0}})
    with pytest.raises(InputError, match="--dropout 2: a probability"):
        tasks.setup_task(cfg.task)


def test_penalties_of_diverse_beams_are_of_the_sentence():
    """Sentence by sentence as in one batch, whatever the numbers in the test set."""
    task = tiny_luna.Task()
    model, dictionary = tiny_luna.tiny_model(torch.float32, task=task), task.target_dictionary
    search = DiverseBeamSearch(dictionary, 2, 0.5)
    generator = SequenceGenerator([model], dictionary, beam_size=4, max_len_b=9, search_strategy=search)
    tokens = tiny_luna.batch(tiny_luna.sentences((9, 4, 6), 23))

    def tokens_of(ids, rows):
        lengths = tokens[rows].ne(1).sum(dim=1)
        net_input = {"src_tokens": tokens[rows], "src_lengths": lengths}
        found = generator.generate([model], {"id": torch.tensor(ids), "net_input": net_input})
        return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]

    together = tokens_of([7, 40, 3], [0, 1, 2])
    for row, number in enumerate((7, 40, 3)):
        assert tokens_of([number], [row]) == together[row : row + 1]
    torch.jit.script(search)


def test_what_a_search_cannot_do(caplog):
    """A prompt longer than the longest output is refused, where fairseq cuts it (which its own models are
    told of); one of that length ends there. Samples are drawn from no more tokens than there are."""
    task = tiny_luna.Task()
    model, dictionary = tiny_luna.tiny_model(torch.float32, task=task), task.target_dictionary
    generator = SequenceGenerator([model], dictionary, beam_size=2, max_len_b=4)
    tokens = tiny_luna.batch(tiny_luna.sentences((9, 4), 23))
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(dim=1)}}
    prompts = torch.tensor([[5, 6, 7, 8], [5, 6, 1, 1]])
    found = generator.generate([model], sample, prefix_tokens=prompts)
    assert found[0][0]["tokens"].tolist() == [5, 6, 7, 8, 2]
    prompts = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 1, 1, 1]])
    with pytest.raises(InputError, match="^a prompt has 5 tokens, and no output may be longer than 4: give"):
        generator.generate([model], sample, prefix_tokens=prompts)
    foreign = Namespace(**{**vars(generator), "model": Namespace(models=[torch.nn.Linear(1, 1)])})
    foreign.search = generator.search
    check_search(foreign, sample, prompts)
    assert caplog.messages == [
        "a prompt has 5 tokens, and no output may be longer than 4: fairseq cuts prompts there"
    ]
    generator.search.sampling_topk = 1 + len(dictionary)
    with pytest.raises(InputError, match="^--sampling-topk .*: the dictionary has .* entries$"):
        generator.generate([model], sample)


@pytest.mark.parametrize("parts", [{}, {"optimizers": {"groups": None}}])
def test_overrides_of_what_an_optimizer_has(parts):
    trainer = Namespace(optimizer=Namespace(param_groups=[{"params": [], "lr": 1.0}], **parts))
    check_optimizer_overrides(trainer, None)
    check_optimizer_overrides(trainer, {"lr": 0.1, **dict.fromkeys(parts.get("optimizers", ()))})
    with pytest.raises(
        InputError, match="--optimizer-overrides: the optimizer has no option lrr; nearest: lr$"
    ):
        check_optimizer_overrides(trainer, {"lrr": 0.1})
