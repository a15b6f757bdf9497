"""One tiny translation model with fairseq's commands, from the authors' command line to its translations."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from commands import fairseq, lines, plugin, refused, succeed
from forked import run_module
from reversal import AUTHORS_COMMAND, SENTENCES
from saved_training import assert_same_training, load

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel
from luna_fairseq.text.lexicon import read_lexicon

# Without the last option, fairseq drops a last batch whose size is not a multiple of 8.
GENERATE = "-s src -t tgt --batch-size 8 --beam 5 --max-len-b 8 --required-batch-size-multiple 1"


def test_the_authors_command(trained):
    log = (trained / "log").read_text(encoding="utf-8")
    rates = {int(n): float(lr) for n, lr in re.findall(r"num_updates=(\d+), lr=([\d.e-]+)", log)}
    assert rates[1] == pytest.approx(1e-5 + (0.1 - 1e-5) / 1000, rel=1e-3)
    assert rates[12] == pytest.approx(1e-5 + (0.1 - 1e-5) * 12 / 1000, rel=1e-3)
    assert "bleu" in log
    checkpoint = load(trained / "checkpoint_last.pt")
    model = checkpoint["cfg"]["model"]
    assert model["_name"] == "luna_base_tied" and model["projection_length"] == 16
    names = set(checkpoint["model"])
    assert "encoder.layers.0.self_attn.pack_kv_proj.weight" in names
    # Apollo has a state for every parameter that had a gradient.
    states = checkpoint["last_optimizer_state"]["state"].values()
    parameters = {tensor.data_ptr() for name, tensor in checkpoint["model"].items() if "version" not in name}
    assert len(states) == len(parameters)
    assert {state["step"] for state in states} == {12}


def test_activation_checkpointing_changes_nothing(trained, data, tmp_path):
    options = (AUTHORS_COMMAND, "--max-update 12 --checkpoint-activations")
    succeed("train", *plugin(data), *options, "--save-dir", tmp_path)
    assert_same_training(load(tmp_path / "checkpoint_last.pt"), load(trained / "checkpoint_last.pt"))


def test_bf16(data, tmp_path):
    options = (AUTHORS_COMMAND, "--max-update 4 --bf16 --fp16-no-flatten-grads --disable-validation")
    log = succeed("train", *plugin(data), *options, "--save-dir", tmp_path)
    losses = [float(loss) for loss in re.findall(r" loss=([\d.]+|nan|inf)", log)]
    assert len(losses) == 4 and losses[-1] < losses[0] + 1
    checkpoint = load(tmp_path / "checkpoint_last.pt")
    # fairseq saves weights in float32, but the values show the type that they had.
    weight = checkpoint["model"]["encoder.packed_embedding.weight"]
    assert torch.equal(weight, weight.bfloat16().float())
    for state in checkpoint["last_optimizer_state"]["state"].values():
        assert state["update"].dtype == torch.float32 and state["update"].isfinite().all()


def test_average_and_generate(trained, data, tmp_path):
    average = tmp_path / "average.pt"
    inputs = [trained / name for name in ("checkpoint1.pt", "checkpoint_last.pt")]
    words = "--inputs", *inputs, "--output", average
    done = run_module("luna_fairseq.commands.average_checkpoints", words)
    assert done.returncode == 0, done.stderr[-3000:]
    name = "encoder.packed_embedding.weight"
    mean = (load(inputs[0])["model"][name].double() + load(inputs[1])["model"][name].double()) / 2
    torch.testing.assert_close(load(average)["model"][name].double(), mean)

    output = succeed("generate", *plugin(data), "--path", average, GENERATE, "--print-alignment soft")
    hypotheses, scores = lines(output, "H"), lines(output, "P")
    assert sorted(hypotheses) == list(range(SENTENCES["test"]))
    assert "Generate test with beam=5: BLEU" in output
    for number, row in lines(output, "A").items():
        words = hypotheses[number].split("\t")[1].split()
        weights = [[float(weight) for weight in word.split(",")] for word in row.split()]
        assert len(weights) == len(scores[number].split()) == len(words) + 1  # with EOS
        # A weight for every source token and EOS, none for padding or for rows of P.
        assert {len(column) for column in weights} == {len(lines(output, "S")[number].split()) + 1}
        assert all(abs(sum(column) - 1) < 1e-3 for column in weights)


def test_hard_alignments_and_interactive(trained, data):
    sentences = ["w1 w2 w3", "", "w4", "w5 w6 " * 200, "unknown w7"]
    options = "-s src -t tgt --beam 5 --max-len-b 8 --buffer-size 5 --max-tokens 1000 --print-alignment"
    output = succeed(
        "interactive",
        *plugin(data),
        "--path",
        trained / "checkpoint_last.pt",
        options,
        stdin="\n".join(sentences) + "\n",
    )
    sources, hypotheses = lines(output, "S"), lines(output, "H")
    assert sorted(sources) == sorted(hypotheses) == [0, 1, 2, 3, 4]
    assert [sources[i].split() for i in range(4)] == [sentence.split() for sentence in sentences[:4]]
    assert sources[4] == "<unk> w7"
    for number, row in lines(output, "A").items():
        pairs = [tuple(map(int, pair.split("-"))) for pair in row.split()]
        targets = [target for _, target in pairs]
        assert targets == sorted(set(targets)) and len(targets) <= len(
            hypotheses[number].split("\t")[1].split()
        )
        assert all(source < len(sentences[number].split()) for source, _ in pairs)


def test_shortlist(trained, data, tmp_path):
    """Translations consist of candidates of their batch, in both commands and in Python."""
    file = tmp_path / "shortlist"
    done = run_module(
        "luna_fairseq.translation.make_shortlist", (data, "--output", file, "--best 3 --common 2")
    )
    assert done.returncode == 0, done.stderr[-3000:]
    candidates, path = read_lexicon(file).candidates, trained / "checkpoint_last.pt"
    options = "-s src -t tgt --beam 2 --max-len-b 8 --required-batch-size-multiple 1 --batch-size 1"
    output = succeed("generate", *plugin(data), "--path", path, options, "--shortlist", file)
    sources, hypotheses = lines(output, "S"), lines(output, "H")
    assert sorted(hypotheses) == list(range(SENTENCES["test"]))
    for number, line in hypotheses.items():
        allowed = {x for word in ("", "</s>", *sources[number].split()) for x in candidates[word]}
        assert {"<unk>", *allowed} >= set(line.split("\t")[1].split())
        assert len(allowed) < 20
    plain = lines(succeed("generate", *plugin(data), "--path", path, options), "H")
    assert plain != hypotheses
    groups = "--diverse-beam-groups 2", "--shortlist", file
    assert len(lines(succeed("generate", *plugin(data), "--path", path, options, *groups), "H")) == len(plain)
    text = "".join(f"{sources[number]}\n" for number in sorted(sources))
    for more in ("", "--int8"):
        words = "-s src -t tgt --beam 2 --max-len-b 8", "--shortlist", file, more
        output = succeed("interactive", *plugin(data), "--path", path, *words, stdin=text)
        assert more or lines(output, "H") == hypotheses
    hub = LunaModel.from_pretrained(str(trained), path.name, str(data), shortlist=str(file)).eval()
    found = [hub.translate(sources[number], beam=2, max_len_a=0, max_len_b=8) for number in sorted(sources)]
    assert found == [hypotheses[number].split("\t")[1] for number in sorted(sources)]
    with ThreadPoolExecutor(4) as threads:
        translate = partial(hub.translate, beam=2, max_len_a=0, max_len_b=8)
        assert [*threads.map(translate, [sources[number] for number in sorted(sources)] * 4)] == found * 4
    message = refused("generate", *plugin(data), "--path", path, options, "--shortlist nowhere")
    assert message.endswith("--shortlist nowhere does not exist. Make it with luna-make-shortlist")
    file.write_text(file.read_text().replace(":src-tgt:", ":tgt-src:"))
    message = refused("generate", *plugin(data), "--path", path, options, "--shortlist", file)
    assert "made for tgt-src, the model translates src-tgt" in message


def test_validate(trained, data):
    words = "--valid-subset valid --task translation -s src -t tgt --max-tokens 100"
    output = succeed("validate", *plugin(data), "--path", trained / "checkpoint_last.pt", words)
    loss = re.search(r"valid on 'valid' subset \| loss ([\d.]+)", output).group(1)
    log = (trained / "log").read_text(encoding="utf-8")
    assert loss == re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", log)[-1]


WRONG_IN_PYTHON = {
    ("bem", 2): "generation has no option bem. Did you mean beam?",
    ("prefix_tokens", None): "generation has no option prefix_tokens",
    ("beam", 0): "beam 0: must be at least 1",
    ("replace_unk", ""): "replace_unk has an effect in",
    ("lm_path", "lm.pt"): "lm_path has an effect in",
}


def test_hub_interface(trained, data):
    hub = LunaModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data), bpe="characters")
    assert type(hub.bpe).__name__ == "Characters"
    hub = LunaModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data)).eval()
    sentences = ["w1 w2 w3 w4", "w5", "w6 w7"]
    together = hub.translate(sentences, beam=5, max_len_b=8)
    assert together == [hub.translate(sentence, beam=5, max_len_b=8) for sentence in sentences]
    assert all(word in hub.tgt_dict.symbols for text in together for word in text.split())
    first, second = hub.translate(sentences[:2], beam=5, constraints=[["w9 w7", "w3"], ["w5"]])
    assert "w9 w7" in first and "w3" in first.split("w9 w7")[1] and "w5" in second
    tokens, only = hub.encode("w1 w2 w3"), lambda *_: [2, 7]
    for given in (tokens, [tokens]):
        found = hub.generate(given, beam=2, max_len_a=0, max_len_b=5, prefix_allowed_tokens_fn=only)
        found = found if given is tokens else found[0]
        assert {token for hypothesis in found for token in hypothesis["tokens"].tolist()} == {2, 7}
    with pytest.raises(InputError, match="constraints .*1 .*2"):
        hub.translate("w1", constraints=["w9", "w7"])
    for wrong, words in WRONG_IN_PYTHON.items():
        with pytest.raises(InputError, match=words):
            hub.translate("w1", **dict([wrong]))
    with pytest.raises(InputError, match="from_pretrained: .* bp. .*bpe"):
        LunaModel.from_pretrained(str(trained), "checkpoint_last.pt", str(data), bp="characters")


def test_going_on_from_half_a_checkpoint_by_name(trained, data, tmp_path):
    """A truncated file that the user names is not replaced. The message names an intact checkpoint."""
    for name in ("checkpoint1.pt", "checkpoint2.pt"):
        shutil.copy(str(trained / name.replace("2", "_last")), str(tmp_path / name))
    half, intact = tmp_path / "checkpoint2.pt", tmp_path / "checkpoint1.pt"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    folder = tmp_path / "other"
    words = (AUTHORS_COMMAND, "--max-update 9", "--save-dir", folder, "--restore-file", half)
    run = fairseq("train", *plugin(data), *words)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith(f"luna_fairseq: error: {half} cannot be read")
    assert message.endswith(f"--restore-file {intact}, or generate with --path {intact}")
