"""``luna-export-huggingface``: a masked language model as a folder that Hugging Face's transformers loads.

FOLDER then holds config.json, model.safetensors, the tokenizer, and the model's code, so that
AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True) and AutoTokenizer.from_pretrained(FOLDER)
work without fairseq and without this package. Before it is written, the new model's output is compared with
the old one's. Needs the extra "huggingface": pip install "luna_fairseq[huggingface]".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict

import torch
from torch import Tensor

from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.masked_lm.huggingface.shipped_code import shipped_code
from luna_fairseq.models import LunaMaskedLM
from luna_fairseq.models.masked_lm_hub import MaskedLMHub
from luna_fairseq.models.tokenizers import find_tokenizer

PROGRAM = "luna-export-huggingface"
LARGEST_DIFFERENCE = 1e-4  # of the self-check, relative to the largest logit; larger is a fault of the export
# fairseq's name of an activation, and transformers'.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "linear": "linear",
    "relu": "relu",
    "swish": "silu",
    "tanh": "tanh",
}
_ENCODER, _HEAD = "encoder.sentence_encoder.", "encoder.lm_head."


def _export(args: argparse.Namespace) -> None:
    export(args.path, args.data, args.folder)
    print(
        f"{args.folder}: AutoModelForMaskedLM.from_pretrained({str(args.folder)!r}, trust_remote_code=True)"
    )


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[1])
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="folder to write, which must not exist yet")
    add(
        "--path",
        required=True,
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint of a Luna masked language model",
    )
    add("--data", required=True, type=Path, metavar="DIR", help="folder of its dict.txt and tokenizer")
    return parser


def export(path: Path, data: Path, folder: Path) -> None:
    """Write ``folder``.

    Args:
        path: the checkpoint.
        data: folder of dict.txt (of input0/dict.txt for a fine-tuned model) and of the tokenizer.
        folder: must not exist.

    Raises:
        InputError: the checkpoint, the tokenizer or the folder is not what it should be, or transformers is
            missing.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already: give another folder, or remove it")
    if not path.is_file():
        raise InputError(f"--path {path} does not exist")
    try:
        from luna_fairseq.masked_lm.huggingface.tokenizer import build_tokenizer
    except ImportError as error:
        raise MissingRequirementError(
            'the export needs transformers and safetensors: pip install "luna_fairseq[huggingface]"'
        ) from error
    hub = LunaMaskedLM.from_pretrained(str(path.parent), path.name, str(data.absolute())).float()
    if not isinstance(hub.model, LunaMaskedLM):
        raise InputError(
            f"{path} is of the model {type(hub.model).__name__}, not of a Luna masked language model"
        )
    if hub.model.classification_heads:
        print(f"left out: the classification heads {', '.join(hub.model.classification_heads)}")
    model = convert(hub.model, hub.dictionary)
    compare(hub, model)
    tokenizer = build_tokenizer(
        find_tokenizer([path.parent, data]), hub.dictionary, hub.model.max_positions()
    )
    with replacing_folder(folder) as temporary:
        write_model(model, temporary)
        tokenizer.save_pretrained(str(temporary))
        _name_tokenizer(temporary / "tokenizer_config.json")


def write_model(model: Any, folder: Path) -> None:
    """Write the converted ``model``, and its code beside it."""
    model.save_pretrained(str(folder))
    for name, text in shipped_code().items():
        (folder / name).write_text(text, encoding="utf-8")


def _name_tokenizer(path: Path) -> None:
    """Give the tokenizer's class the name that every version of transformers knows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    content.pop("backend", None)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def convert(model: LunaMaskedLM, dictionary: Any) -> Any:
    """The same model as transformers' class.

    Raises:
        InputError: its activation function has no counterpart there.
    """
    from luna_fairseq.masked_lm.huggingface.configuration_luna import LunaConfig
    from luna_fairseq.masked_lm.huggingface.modeling_luna import LunaForMaskedLM

    args = model.args
    if args.activation_fn not in ACTIVATIONS:
        raise InputError(f"transformers has no activation function like {args.activation_fn}")
    encoder = model.encoder.sentence_encoder
    config = LunaConfig(
        vocab_size=encoder.embed_tokens.num_embeddings,
        hidden_size=args.encoder_embed_dim,
        num_hidden_layers=len(encoder.layers),
        num_attention_heads=args.encoder_attention_heads,
        intermediate_size=args.encoder_ffn_embed_dim,
        projection_length=args.projection_length,
        fix_projection_length=args.fix_projection_length,
        untie_kv=args.untie_luna_kv,
        anchored_packed=args.anchored_packed,
        local_parts=args.local_parts,
        share_token_projections=args.share_token_projections,
        normalize_before=args.encoder_normalize_before,
        untie_embeddings=args.untie_weights_luna,
        max_position_embeddings=model.max_positions(),
        hidden_act=ACTIVATIONS[args.activation_fn],
        hidden_dropout=args.dropout,
        attention_dropout=args.attention_dropout,
        activation_dropout=args.activation_dropout,
        pad_token_id=dictionary.pad(),
        bos_token_id=dictionary.bos(),
        eos_token_id=dictionary.eos(),
        auto_map={
            "AutoConfig": "configuration_luna.LunaConfig",
            "AutoModel": "modeling_luna.LunaModel",
            "AutoModelForMaskedLM": "modeling_luna.LunaForMaskedLM",
        },
    )
    exported = LunaForMaskedLM(config).eval()
    exported.load_state_dict(_rename(model))
    return exported


def _rename(model: LunaMaskedLM) -> Dict[str, Tensor]:
    renamed = {"luna.packed_layer_norm.weight": torch.ones(1), "luna.packed_layer_norm.bias": torch.zeros(1)}
    width = model.args.encoder_embed_dim
    renamed = {name: value.expand(width).clone() for name, value in renamed.items()}
    for name, value in model.state_dict().items():
        if name.startswith(_ENCODER) and not name.endswith("version"):
            renamed[f"luna.{name[len(_ENCODER) :]}"] = value
        elif name.startswith(_HEAD):
            name = name[len(_HEAD) :]
            if name == "weight" and not model.args.untie_weights_luna:
                continue  # the token embedding
            renamed[f"output_{name}" if name in ("weight", "bias") else name] = value
    return renamed


def compare(hub: MaskedLMHub, exported: Any) -> None:
    """Raise InputError when the two models differ on sequences of several lengths."""
    generator = torch.Generator().manual_seed(1)
    pad, longest = hub.dictionary.pad(), min(hub.model.max_positions(), 3 * hub.model.args.projection_length)
    tokens = torch.randint(4, len(hub.dictionary), (3, longest), generator=generator)
    tokens[1, longest // 2 :] = pad
    tokens[2, max(1, longest // 6) :] = pad
    with torch.no_grad():
        expected, _ = hub.model(tokens)
        found = exported(tokens).logits
    difference = (found - expected)[tokens.ne(pad)].abs().max() / expected.abs().max()
    if not difference <= LARGEST_DIFFERENCE:
        raise InputError(
            f"the exported model differs from the checkpoint's by {difference:.1e}: please report this"
        )


main = console_script(PROGRAM, build_parser, lambda args: _export(args), place="folder", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
