"""A user's --user-dir with an attention, an option and a model of its own, built on this package."""

import pytest
from commands import TINY, lines, refused, succeed
from reversal import preprocess, write_corpus

CODE = '''
from dataclasses import dataclass
from functools import partial

from fairseq.models import register_model
from luna_fairseq.models import LunaModel
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.options import option
from luna_fairseq.modules import DecoderAttentions, LunaAttention
from luna_fairseq.modules.builders import TORCH
from luna_fairseq.modules.luna_attention import attention_arguments


class CoolAttention(LunaAttention):
    """Luna attention whose unpack logits are divided by a temperature."""

    reads_only_rows = False  # the absorbed forms know no temperature

    def __init__(self, temperature, **arguments):
        super().__init__(**arguments)
        self.temperature = temperature

    def prepare(self, memory, source):
        return memory

    def attend_to_rows(self, q, *arguments):
        return super().attend_to_rows(q / self.temperature, *arguments)


@dataclass(frozen=True)
class CoolAttentions(DecoderAttentions):
    temperature: float = 1.0

    def build_cross_attention(self, update_packed, builders=TORCH):
        return CoolAttention(self.temperature, **attention_arguments(self.options, builders))


@dataclass
class CoolConfig(LunaConfig):
    temperature: float = option(2.0, "temperature of unpack attention to the source", above=0)


def choose_attentions(cfg, options):
    return CoolAttentions(options, cfg.temperature)


@register_model("cool", dataclass=CoolConfig)
class Cool(LunaModel):
    decoder_class = staticmethod(partial(FairseqLunaDecoder, choose_attentions=choose_attentions))
'''
TRAINING = f"""
    -s src -t tgt --arch cool {TINY} --projection-length 4 --share-all-embeddings --optimizer adam --lr 0.003
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --batch-size 8 --num-workers 0
    --log-format simple
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "cool_attention").mkdir()
    (folder / "cool_attention" / "__init__.py").write_text(CODE)
    write_corpus(folder, {"train": 40, "valid": 8, "test": 6})
    return folder, folder / "cool_attention", preprocess(folder)


def test_a_model_with_an_attention_and_an_option_of_its_own_trains_and_translates(world):
    folder, code, data = world
    run = ("--user-dir", code, data, "-s src -t tgt")
    succeed("train", "--user-dir", code, data, TRAINING, "--max-update 4 --save-dir", folder / "run")
    output = succeed("generate", *run, "--path", folder / "run" / "checkpoint_last.pt")
    assert len(lines(output, "H")) == 6
    checkpoint = folder / "run" / "checkpoint_last.pt"
    warm = succeed("generate", *run, "--path", checkpoint, "--model-overrides {'temperature':100.0}")
    assert lines(warm, "H") != lines(output, "H")


def test_its_option_has_bounds(world):
    folder, code, data = world
    said = refused("train", "--user-dir", code, data, TRAINING, "--temperature 0 --save-dir", folder / "bad")
    assert "--temperature" in said and "0" in said
