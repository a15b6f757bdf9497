"""Attention maps contain the weights that the models compute."""

from argparse import Namespace

import pytest
import tiny_luna
import tiny_masked_lm
import torch
from old_torch import HAS_KEYWORD_HOOKS
from tiny_checkpoints import save
from tiny_luna import VARIANTS, Task, assert_close, batch, example, marked, tiny_model
from tiny_models import classifier, language_model

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from fairseq.modules import MultiheadAttention
from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.errors import InputError
from luna_fairseq.modules import LunaCausalAttention
from luna_fairseq.ops.causal_luna import naive_causal_luna
from luna_fairseq.report import recording
from luna_fairseq.report.attention import AttentionMaps, attention_maps
from luna_fairseq.report.loading import Classifier, load
from luna_fairseq.report.recording import record_attention


def one_sentence():
    sources, targets = example((9,), (6,))
    return batch(sources), batch(targets)


def run(model, source, target):
    """Return the records by name, the logits and the second output of the model."""
    with record_attention(model) as found:
        logits, extra = model(source, torch.tensor([source.size(1)]), target)
    return {one.name: one for one in found}, logits, extra


@pytest.mark.parametrize("variant", [marked(variant) for variant in VARIANTS])
def test_maps_of_a_translation_model(variant):
    model = tiny_model(**VARIANTS[variant])
    source, target = one_sentence()
    before, _ = model(source, torch.tensor([9]), target)
    found, logits, extra = run(model, source, target)
    assert_close(logits, before)
    assert_close(found["decoder.2.cross"].weights["read"][0].mean(dim=0), extra["attn"][0][0])
    assert set(found) == {
        *(f"encoder.{layer}.self" for layer in range(2)),
        *(f"decoder.{layer}.{kind}" for layer in range(3) for kind in ("self", "cross")),
    }
    for name, one in found.items():
        for kind, weights in one.weights.items():
            assert weights.shape[-2:] == shape_of(name, kind, 5), (name, kind)
            shares = weights.sum(dim=-1)
            if name.endswith("cross") or name.startswith("encoder"):
                # With a look-up, some weight goes to tokens instead of rows of P.
                assert shares.max() < 1 + 1e-9 and (
                    kind == "unpack" or torch.allclose(shares, torch.ones_like(shares))
                )
        if (
            not {"packed_lookup", "local_parts"} & set(VARIANTS[variant])
            and {"pack", "unpack"} <= set(one.weights)
            and "decoder.self" not in name
        ):
            product = one.weights["unpack"] @ one.weights["pack"].mean(dim=1, keepdim=True)
            if not name.startswith("decoder") or name.endswith("cross"):
                assert_close(one.weights["read"], product)
    assert "forward" not in vars(model.encoder.layers[0].self_attn)


@pytest.mark.parametrize(
    "variant", ["tied", "local parts", "look-up diagonal decay", "anchored softmax cross diagonal"]
)
def test_maps_in_bfloat16(variant):
    model = tiny_model(torch.bfloat16, **VARIANTS[variant])
    found, _, _ = run(model, *one_sentence())
    expected, _, _ = run(model.float(), *one_sentence())
    for name, one in found.items():
        for kind, weights in one.weights.items():
            assert_close(weights.float(), expected[name].weights[kind], tolerance=0.05)


def shape_of(name, kind, rows):
    source, target = 9, 6
    attending, attended = {
        "encoder": (source, source),
        "decoder.self": (target, target),
        "decoder.cross": (target, source),
    }["encoder" if name.startswith("encoder") else f"decoder.{name.rsplit('.', 1)[1]}"]
    return {"pack": (rows, attended), "unpack": (attending, rows), "read": (attending, attended)}[kind]


def test_learned_strengths_of_anchored_attention():
    found, _, _ = run(tiny_model(anchored_packed=True, packed_lookup=2), *one_sentence())
    assert set(found["encoder.0.self"].strengths) == {"pack gamma", "unpack gamma"}
    assert set(found["decoder.0.cross"].strengths) == {"pack gamma", "look-up gate"}
    assert found["decoder.0.self"].strengths == {}


@pytest.mark.parametrize("attention_class", [LunaCausalAttention, DecayingCausalAttention])
def test_causal_read_map_reproduces_the_output(attention_class):
    torch.manual_seed(0)
    attention = attention_class(12, 3, untie_kv=True).double()
    query, packed = torch.randn(7, 1, 12).double(), torch.randn(5, 1, 12).double()
    layers = torch.nn.ModuleList([torch.nn.ModuleDict({"self_attn": attention})])
    model = torch.nn.ModuleDict({"decoder": torch.nn.ModuleDict({"layers": layers})})
    memory = attention.read(packed)
    with record_attention(model) as found:
        output, _ = attention(query, memory)
    pack, unpack = attention.weights(query, memory)
    _, q, k, v = attention._project_x(query)
    expected, weights = naive_causal_luna(q, k, v, pack, log_decay=attention.log_decay())
    assert_close(found[0].weights["read"] @ v, expected)
    assert_close(unpack, weights)
    assert_close(attention.out_proj((found[0].weights["read"] @ v).permute(2, 0, 1, 3).flatten(2)), output)


class OwnAttention(torch.nn.Module):
    watcher = None

    def forward(self, query):
        if self.watcher is not None:
            self.watcher(self, query)
        return query


def test_an_attention_of_another_class_has_one_entry_in_the_table(monkeypatch):
    entry = (lambda attention, call: {"read": call["query"]}, ("query",))
    monkeypatch.setitem(recording._WEIGHT_FUNCTIONS, OwnAttention, entry)
    layers = torch.nn.ModuleList([torch.nn.ModuleDict({"self_attn": OwnAttention()})])
    model = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layers": layers})})
    with recording.record_attention(model) as found:
        output = layers[0]["self_attn"](torch.ones(1))
    assert found[0].name == "encoder.0.self" and found[0].weights["read"] is output


needs_torch_2 = pytest.mark.skipif(
    not HAS_KEYWORD_HOOKS, reason="torch 1.13 has no hooks for keyword arguments"
)


@needs_torch_2
def test_maps_of_fairseqs_transformer():
    options = {name: value for name, value in tiny_luna.OPTIONS.items() if "project" not in name}
    options.update(decoder_embed_dim=12, arch="transformer", share_decoder_input_output_embed=False)
    args = Namespace(**options)
    model = TransformerModel.build_model(args, Task()).eval()
    found, _, extra = run(model, *one_sentence())
    assert set(found["decoder.0.cross"].weights) == {"read"} and len(found) == 2 + 3 + 3
    assert_close(found["decoder.2.cross"].weights["read"][0].mean(dim=0), extra["attn"][0][0], torch.float32)
    assert found["decoder.0.self"].weights["read"].triu(1).abs().max() == 0
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in model.modules())


def test_maps_of_fairseqs_attention_need_torch_2(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.13.1")
    attention = MultiheadAttention(12, 3)
    layers = torch.nn.ModuleList([torch.nn.ModuleDict({"self_attn": attention})])
    model = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layers": layers})})
    with pytest.raises(InputError, match="1.13.1"):
        with record_attention(model):
            pass


class Hub:
    """The part of fairseq's generator interface that attention maps use."""

    device = "cpu"

    def __init__(self, model, task):
        self.models, self.task = [model], task
        self.src_dict, self.tgt_dict = task.source_dictionary, getattr(task, "target_dictionary", None)

    def encode(self, text):
        return self.src_dict.encode_line(text, add_if_not_exist=False).long()

    def decode(self, tokens):
        return self.tgt_dict.string(tokens)

    def tokenize(self, text):
        return text

    apply_bpe = tokenize

    def generate(self, sentences, beam):
        return [[{"tokens": self.encode("w1 w2 w3")}]]


def test_the_tokens_on_the_axes():
    hub = Hub(tiny_model(torch.float32), Task())
    maps = attention_maps(hub, "w1 w2 w3")
    assert maps.source == ["w1", "w2", "w3", "</s>"]
    assert maps.target == ["w1", "w2", "w3", "</s>"] and maps.target_input == ["</s>", "w1", "w2", "w3"]
    assert maps["encoder.1.self.pack"].shape == maps["decoder.2.cross.unpack"].shape == (2, 4, 4)
    assert maps.texts == {"source": "w1 w2 w3", "translation": "w1 w2 w3"}
    given = attention_maps(hub, "w1 w2 w3", target="w4 w5")
    assert given.target == ["w4", "w5", "</s>"] and given["decoder.0.cross.read"].shape == (2, 3, 4)
    assert given.tokens("decoder.0.self") == (["</s>", "w4", "w5"],) * 2
    for name, weights in maps.items():
        rows, columns = maps.tokens(name.rsplit(".", 1)[0])
        assert weights.shape[1] in (len(rows), 4) and weights.shape[2] in (len(columns), 4)
    assert maps._repr_html_().startswith("<iframe")


def test_weights_that_are_no_numbers_are_refused():
    model = tiny_model(torch.float32)
    with torch.no_grad():
        model.encoder.layers[1].fc2.weight[0] = torch.nan
    with pytest.raises(InputError, match="weights of decoder.0.cross.pack are NaN .* training has diverged"):
        attention_maps(Hub(model, Task()), "w1 w2 w3")


@pytest.mark.parametrize("first", ["<s>", "</s>"])
def test_maps_of_a_language_model(first):
    model, task = language_model(torch.float32), Task(23, 23)
    task.args = Namespace(add_bos_token=first == "<s>")
    maps = attention_maps(Hub(model, task), "w1 w2")
    assert maps.target_input == [first, "w1", "w2"]
    assert list(maps)[:3] == ["decoder.0.self.pack", "decoder.0.self.unpack", "decoder.0.self.read"]
    assert maps.source == [] and maps.target == ["w1", "w2", "</s>"]
    assert maps["decoder.1.self.read"].shape == (3, 3, 3)


def test_maps_of_a_masked_language_model():
    hub = Namespace(model=tiny_masked_lm.tiny_model(torch.float32), task=tiny_masked_lm.Task())
    encode_line = hub.task.source_dictionary.encode_line
    hub.encode = lambda text: encode_line(f"<s> {text}", add_if_not_exist=False).long()
    hub.extract_features = lambda tokens: hub.model(tokens.unsqueeze(0), features_only=True)
    maps = attention_maps(hub, "w1 w2")
    assert maps.source == ["<s>", "w1", "w2", "</s>"] and maps["encoder.1.self.read"].shape == (3, 4, 4)


@pytest.mark.parametrize("layer_type", ["luna", pytest.param("transformer", marks=needs_torch_2)])
@pytest.mark.parametrize("tied", [False, True])
def test_maps_of_a_classifier(layer_type, tied):
    model = classifier(torch.float32, encoder_layers=3, tie_layer_weights=tied, layer_type=layer_type)
    tokens = torch.randint(4, 23, (1, 7))

    def classify_text(text, max_tokens):
        model(tokens, all_outputs=True)
        return [f"w{i}" for i in range(7)], "1"

    maps = attention_maps(Namespace(model=model, classify_text=classify_text), "text")
    assert {name.split(".")[1] for name in maps} == {"0", "1", "2"}
    assert all(maps[f"encoder.{layer}.self.read"].shape[1:] == (7, 7) for layer in range(3))
    assert maps.texts["class"] == "1"


def test_entropy_and_coverage():
    even = torch.full((1, 4, 8), 1 / 8)
    sharp = torch.eye(8)[:4].unsqueeze(0)
    maps = AttentionMaps({"encoder.0.self.pack": torch.cat([even, sharp])}, [])
    assert maps.entropy("encoder.0.self.pack").tolist() == pytest.approx([1, 0], abs=1e-5)
    assert maps.coverage("encoder.0.self.pack").tolist() == [1 / 8, 1 / 2]


@pytest.mark.parametrize("text, message", [("  ", "empty text"), ("w1 " * 600, "601 tokens")])
def test_empty_and_too_long_texts_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        attention_maps(Hub(tiny_model(torch.float32), Task()), text)


def test_a_long_text_of_a_classifier_is_refused_before_the_model_runs():
    dictionary = Dictionary()
    task = Namespace(pairs=False, dictionary=dictionary, prepends_cls=False)
    with pytest.raises(InputError, match="513"):
        attention_maps(Classifier(task, torch.nn.Linear(2, 2)), "w " * 512)


def test_a_model_without_attention_is_refused():
    classifier = Namespace(model=torch.nn.Linear(2, 2), classify_text=lambda text, max_tokens: ([], ""))
    with pytest.raises(InputError, match="no attention"):
        attention_maps(classifier, "text")


@pytest.mark.parametrize("kind", ["translation", "causal LM", "masked LM"])
def test_a_loaded_hub_is_on_the_device_of_its_model(kind, tmp_path, monkeypatch):
    path, _, _ = save(kind, "tied", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self.to("meta"))
    hub = load(path)
    assert hub.device == next(hub.parameters()).device == torch.device("meta")
