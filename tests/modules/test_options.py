"""Test the table that says which options of a configuration determine an option of the core."""

from dataclasses import fields

import pytest

from luna_fairseq.checks.model_options import plain_options
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.luna_lm_config import LunaLanguageModelConfig
from luna_fairseq.modules.options import CONFIGURATION, DecoderOptions, EncoderOptions, options_from

# Options that the adapter gives: functions, and the kind of encoder or decoder.
GIVEN = {
    "activation_fn",
    "sentence_encoder",
    "packed_is_read",
    "layer_repeats",
    "has_encoder",
    "backend",
    "fixed_shapes",
}


def configuration_names(options):
    """Return the names of the configuration options that are read for a class of options."""
    names = []
    options_from(options, names.append)
    return names


@pytest.mark.parametrize("options", [EncoderOptions, DecoderOptions])
def test_every_option_is_read_from_a_configuration_or_given(options):
    names = {field.name for field in fields(options)}
    assert names - GIVEN == names & set(CONFIGURATION)


@pytest.mark.parametrize("options", [EncoderOptions, DecoderOptions])
def test_the_command_line_has_every_option(options):
    declared = {**plain_options(LunaConfig()), **plain_options(LunaLanguageModelConfig())}
    assert not set(configuration_names(options)) - set(declared)


def test_a_configuration_of_transformers_has_every_option():
    configuration = pytest.importorskip("luna_fairseq.huggingface.configuration_luna", exc_type=ImportError)
    encoder, decoder = set(configuration_names(EncoderOptions)), set(configuration_names(DecoderOptions))
    assert not encoder - set(configuration.DEFAULTS)
    assert not (encoder | decoder) - {*configuration.DEFAULTS, *configuration.DECODER_DEFAULTS}
    assert not decoder - set(configuration.LunaDecoderConfig.defaults)
