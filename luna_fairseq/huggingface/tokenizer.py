"""fairseq's encoding of a model as a tokenizer of Hugging Face's tokenizers: the same ids, without
fairseq."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import digest
from luna_fairseq.huggingface.tokenization_luna import LunaTokenizer
from luna_fairseq.huggingface.tokenization_luna_moses import LunaMosesTokenizer
from luna_fairseq.models.tokenizers import find_text_pipeline
from luna_fairseq.text.documents import SEPARATOR
from luna_fairseq.text.pieces import detect_encoding

SPACE = "\u2581"
BOS, EOS, PAD, UNKNOWN, MASK = "<s>", "</s>", "<pad>", "<unk>", "<mask>"
_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
# Files of the tokenizer of each encoding.
_FILES = {
    "sentencepiece": "sentencepiece.bpe.model",
    "gpt2": "GPT-2's encoder.json and vocab.bpe",
    "subword_nmt": "bpe.codes, which luna-prepare-bitext --subword moses wrote,",
}
_PROBE = "\ufb01\u2460\u00c5"  # a ligature, a circled digit, a letter that has a second form


class Template(NamedTuple):
    """What stands around a sequence, and around a pair."""

    single: str
    pair: str


MASKED_LM = Template(f"{BOS} $A {EOS}", f"{BOS} $A {EOS} {EOS} $B {EOS}")


def build_tokenizer(
    files: Mapping[str, str],
    dictionary: Dictionary,
    positions: int,
    template: Template = MASKED_LM,
    padding_side: str = "right",
    languages: Sequence[str] = (),
) -> LunaTokenizer:
    """Build a tokenizer from plain text to the ids of ``dictionary``, and back.

    ``<mask>`` in a text is the mask, and ``<sep>`` ends a sentence of a document. Other special symbols in a
    text are text, as they are for fairseq.

    Args:
        files: fairseq's options of the tokenizer, as returned by ``find_text_pipeline``; empty if the text
            is words
        dictionary: the model's
        positions: length of the longest sequence
        template: special symbols around sequences (default: RoBERTa's)
        padding_side: side on which shorter sequences of a batch are padded (default: "right")
        languages: source and target language, for Moses

    Raises:
        InputError: the dictionary holds pieces, and ``files`` are not those of its encoding; the encoding is
            sentencepiece's but no byte-pair encoding, or has pieces that the dictionary lacks
    """
    ids = {dictionary[index]: index for index in range(len(dictionary))}
    encoding = detect_encoding(dictionary)
    if encoding is not None and not files:
        raise InputError(
            f"the dictionary holds pieces of {encoding}, and its tokenizer is not there: put "
            f"{_FILES[encoding]} beside the checkpoint or into --data"
        )
    if files and files["bpe"] == "subword_nmt" and encoding != "subword_nmt":
        raise InputError(
            f"{files['bpe_codes']} splits words into pieces with @@, and the dictionary has none of them: "
            "give the folder of the data that the model was trained on"
        )
    made, more = LunaTokenizer, {}  # type: Any, Dict[str, Any]
    if not files:
        tokenizer = _words(ids)
    elif files["bpe"] == "subword_nmt":
        made, more = LunaMosesTokenizer, {"codes_file": files["bpe_codes"], "languages": languages}
        tokenizer = _words(ids, pieces=True)
    elif files["bpe"] == "gpt2":
        tokenizer = _gpt2(files, ids)
    else:
        tokenizer = _sentencepiece(
            sentencepiece.SentencePieceProcessor(model_file=files["sentencepiece_model"]), ids
        )
    if SEPARATOR in ids:  # takes the space before it, and the sentence after it begins as a text does
        tokenizer.add_tokens([AddedToken(SEPARATOR, lstrip=True, normalized=False)])
    around = {symbol for part in template for symbol in part.split() if not symbol.startswith("$")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template.single,
        pair=template.pair,
        special_tokens=[(symbol, ids[symbol]) for symbol in sorted(around)],
    )
    mask = {"mask_token": MASK} if MASK in ids else {}
    return made(
        **more,
        tokenizer_object=tokenizer,
        bos_token=BOS if BOS in around else EOS,
        eos_token=EOS,
        cls_token=BOS,
        sep_token=EOS,
        pad_token=PAD,
        **mask,
        clean_up_tokenization_spaces=False,
        model_max_length=positions,
        model_input_names=["input_ids", "attention_mask"],
        padding_side=padding_side,
    )


def tokenizer_of(task: Any, folders: List[Path], config: Any) -> Any:
    """Return the tokenizer of fairseq's ``task``, or None if it reads pixels. Its files are in one of
    ``folders``.

    Raises:
        InputError: see :func:`build_tokenizer`
    """
    dictionary, target = task.source_dictionary, task.target_dictionary
    if dictionary is None:
        return None
    files = find_text_pipeline(folders)
    languages = [getattr(task.cfg, f"{side}_lang", None) or "en" for side in ("source", "target")]
    longest = min(config.max_position_embeddings, 10**6)
    side = "left" if config.model_type == "luna_lm" else "right"  # a batch of prompts can be gone on with
    tokenizer = build_tokenizer(files, dictionary, longest, _template(config), side, languages)
    if config.is_encoder_decoder and target.symbols != dictionary.symbols:
        positions = config.max_target_positions
        of_target = build_tokenizer(files, target, positions, _template(config), languages=languages)
        tokenizer.set_target(of_target.backend_tokenizer)
    return tokenizer


def vocabularies(tokenizer: Optional[LunaTokenizer]) -> Dict[str, str]:
    """File of a tokenizer, as ``tokenizer`` is saved -> what :func:`vocabulary_of` says of it."""
    if tokenizer is None:
        return {}
    both = zip(tokenizer.vocab_files_names.values(), (tokenizer.backend_tokenizer, tokenizer.target))
    return {file: vocabulary_of(one) for file, one in both if one is not None}


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """SHA-256 of what each id stands for."""
    return digest(sorted(tokenizer.get_vocab().items()))


def _template(config: Any) -> Template:
    if config.model_type == "luna_lm":
        return Template(f"{EOS} $A", f"{EOS} $A $B")  # fairseq begins a text with the end of another
    if config.is_encoder_decoder:
        return Template(f"$A {EOS}", f"$A $B {EOS}")
    if getattr(config, "classifier_layers", 0):
        first = "<CLS> " if config.prepends_cls else ""
        return Template(f"{first}$A {EOS}", f"{first}$A {EOS} $B {EOS}")
    return MASKED_LM


def _words(ids: Dict[str, int], pieces: bool = False) -> Tokenizer:
    """Words, or pieces with ``@@`` where a word goes on, between spaces."""
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(f"[{_SPACES}]+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # A space before every word but the first: none has one within, so that none is the end of another.
    spaced = decoders.WordPiece(prefix=" ", cleanup=False)
    joined = [decoders.Fuse(), decoders.Replace(Regex("@@( |$)"), "")] if pieces else []
    tokenizer.decoder = decoders.Sequence([spaced, *joined])
    return tokenizer


def _gpt2(files: Mapping[str, str], ids: Dict[str, int]) -> Tokenizer:
    """fairseq's dictionary has the numbers of GPT-2's pieces as its symbols."""
    pieces = json.loads(Path(files["gpt2_encoder_json"]).read_text(encoding="utf-8"))
    lines = Path(files["gpt2_vocab_bpe"]).read_text(encoding="utf-8").split("\n")[1:]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    symbols = {str(number): piece for piece, number in pieces.items()}
    vocabulary = {symbols.get(symbol, symbol): index for symbol, index in ids.items()}
    tokenizer = Tokenizer(_byte_pairs(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(model: Any, ids: Dict[str, int]) -> Tokenizer:
    pieces = [
        model.id_to_piece(index)
        for index in range(model.get_piece_size())
        if not (model.is_control(index) or model.is_unknown(index) or model.is_unused(index))
    ]
    _check_kind(model, pieces)
    # The pair that makes the piece learnt first is merged first.
    rank = {piece: number for number, piece in enumerate(pieces)}
    pairs = [
        (rank[piece], piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in rank and piece[cut:] in rank
    ]
    tokenizer = Tokenizer(_byte_pairs(ids, [(left, right) for _, left, right in sorted(pairs)]))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{_SPACES}]+"), " "),
            normalizers.Replace(Regex("^ "), ""),
            # Here and not by the pre-tokenizer, which would not put a space before a text that begins with
            # this character. Of it, too, sentencepiece drops what stands at the end.
            normalizers.Prepend(SPACE),
            normalizers.Replace(" ", SPACE),
            normalizers.Replace(Regex(f"{SPACE}+$"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _check_kind(model: Any, pieces: List[str]) -> None:
    """Learnt pieces of a byte-pair encoding score 0, -1, -2, ...; those of other kinds have probabilities."""
    scores = [model.get_score(model.piece_to_id(piece)) for piece in pieces]
    if scores != [-float(number) for number in range(len(scores))]:
        raise InputError("the sentencepiece model is no byte-pair encoding: only such a one can be exported")
    if "".join(model.encode(_PROBE, out_type=str)) != SPACE + _PROBE:
        raise InputError("the sentencepiece model normalises text: only one that does not can be exported")


def _byte_pairs(vocabulary: Dict[str, int], merges: List[Tuple[str, str]]) -> models.BPE:
    lacking = [piece for pair in merges for piece in (*pair, "".join(pair)) if piece not in vocabulary]
    if lacking:
        raise InputError(
            f"the dictionary lacks {len(set(lacking)):,} of the tokenizer's pieces, such as {lacking[0]!r}: "
            "the tokenizer of another vocabulary, or a dictionary of the frequent pieces alone"
        )
    return models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN, fuse_unk=True)
