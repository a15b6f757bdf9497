"""Options that cannot be are refused in one line, when they are parsed."""

import multiprocessing
import sys
from argparse import Namespace
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
EVAL_LM = {"path": "x.pt", "context_window": 0}
WIDTHS = {"decoder_embed_dim": 32, "encoder_embed_dim": 32}
CRITERION = "label_smoothed_cross_entropy_with_alignment"


@pytest.mark.parametrize(
    "given, message",
    [
        ({"arch": "luna", "dropout": 1.5}, "--dropout 1.5: must be at least 0 and below 1"),
        ({"arch": "luna_lm", "word_dropout": -0.1}, "--word-dropout -0.1: must be at least 0"),
        ({"arch": "peer_transformer", "attention_dropout": float("nan")}, "--attention-dropout nan: must be"),
        ({"optimizer": "apollo", "clip_norm": -1.0}, "--clip-norm -1: must be at least 0"),
        ({"label_smoothing": 2.0}, "--label-smoothing 2: must be at least 0 and below 1"),
        (
            {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "linear"},
            "--criterion label_smoothed_cross_entropy_with_alignment needs weights over the source",
        ),
        (
            {**TRAIN, "best_checkpoint_metric": "bleu", "task": "translation"},
            "--best-checkpoint-metric bleu needs --eval-bleu",
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
            "--quant-noise-pq quantizes tokens at --decoder-embed-dim 32",
        ),
        ({"eval_bleu_args": "{x"}, "--eval-bleu-args {x is not JSON"),
        ({"eval_bleu_args": "[4]"}, "--eval-bleu-args [4] is not JSON"),
        ({"eval_bleu_args": '{"bem": 4}'}, "--eval-bleu-args: there is no option bem; nearest: beam"),
        (
            {"eval_bleu_detok": "moses", "eval_bleu_detok_args": '{"moses_no_escap": true}'},
            "--eval-bleu-detok-args: there is no option moses_no_escap; nearest: moses_no_escape",
        ),
        ({**PROMPTS, "sample_break_mode": "none"}, "fairseq-generate continues one prompt a line"),
        ({**PROMPTS, "add_bos_token": True}, "fairseq-generate takes the </s> of --add-bos-token"),
        ({**PROMPTS, "print_alignment": "hard"}, "--print-alignment is for translation"),
        ({**PROMPTS, "replace_unk": ""}, "--replace-unk is for translation"),
        ({**INTERACTIVE, "task": "streaming_lm", "constraints": "ordered"}, "--constraints is for transl"),
        ({**GENERATE, "task": "streaming_lm"}, "fairseq-generate continues one prompt a line"),
        ({**EVAL_LM, "distributed_world_size": 2}, "--distributed-world-size 2, or torchrun: fairseq-eval"),
        (
            {**EVAL_LM, "task": "streaming_lm", "post_process": "subword_nmt"},
            "--post-process and --remove-bpe: --task streaming_lm cannot count words",
        ),
        ({**EVAL_LM, "task": "streaming_lm", "num_shards": 2}, "--num-shards 2: --task streaming_lm reads"),
    ],
)
def test_what_cannot_be(given, message):
    with pytest.raises(InputError) as error:
        check_options(Namespace(**given))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "given",
    [
        {"arch": "luna", "dropout": 0, "activation_dropout": 0.99, "label_smoothing": 0.0},
        {"arch": "transformer", "dropout": 1.5, "encoder_layers": 0},  # fairseq's own
        {"optimizer": "adam", "clip_norm": -1.0},
        {"arch": "luna", "encoder_layers": 1, "max_tokens": None, "encoder_layers_to_keep": "0,2"},
        {**TRAIN, "best_checkpoint_metric": "bleu", "task": "translation", "eval_bleu": True},
        {**TRAIN, "criterion": CRITERION, "arch": "luna", "cross_attention": "luna"},
        {**TRAIN, "criterion": CRITERION, "arch": "peer_transformer", "cross_attention": "softmax"},
        {**GENERATE, "task": "multilingual_translation"},
        {**WIDTHS, "decoder_output_dim": 16},
        {**WIDTHS, "share_all_embeddings": True, "decoder_input_dim": 512},
        PROMPTS,
        {**INTERACTIVE, "task": "language_modeling", "add_bos_token": True},
        {**INTERACTIVE, "constraints": "ordered"},
        {**EVAL_LM, "num_shards": 2, "shard_id": 1, "distributed_world_size": 1},
        {**EVAL_LM, **TRAIN, "distributed_world_size": 2},
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
    with pytest.raises(InputError, match="--dropout 2: must be at least 0 and below 1"):
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
