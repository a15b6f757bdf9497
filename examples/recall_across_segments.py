"""Does a carried P remember? Recall of what was read 1 to 64 segments before, by a tiny model of each kind.

The first segment holds eight keys with their values (``associative``) or eight values, then come segments of
noise, and the last asks for the values: of the keys in another order, or in their own (``copy``), or from the
last to the first (``reverse``). A training begins with the answer one segment back and doubles the distance
whenever nine answers of ten are right.

    python examples/recall_across_segments.py --carry luna --task copy --json runs/luna.json
    python examples/recall_across_segments.py --plot recall.png runs/*.json    # needs matplotlib
"""

import argparse
import json
import random
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from fairseq.data import Dictionary
from luna_fairseq.commands.plots import check_plot, new_figure, save_png
from luna_fairseq.models import LunaMaskedLM

PAIRS, KEYS, VALUES, NOISE = 8, 32, 16, 16
SEGMENT, WIDTH, BATCH = 2 * PAIRS, 64, 32
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
DICTIONARY = Dictionary()
for number in range(KEYS + VALUES + NOISE + 1):
    DICTIONARY.add_symbol(f"s{number}")
FIRST_KEY = DICTIONARY.nspecial
FIRST_VALUE = FIRST_KEY + KEYS
FIRST_NOISE = FIRST_VALUE + VALUES
ASK = len(DICTIONARY) - 1


def examples(task, distance, batch=BATCH):
    """Tokens [B, (distance + 1) * SEGMENT] and the answers [B, PAIRS], asked at the last odd positions."""
    values = torch.randint(VALUES, (batch, PAIRS)) + FIRST_VALUE
    keys = torch.rand(batch, KEYS).argsort(dim=1)[:, :PAIRS] + FIRST_KEY
    order = torch.rand(batch, PAIRS).argsort(dim=1)
    if task != "associative":
        order = torch.arange(PAIRS).expand(batch, -1)
        keys = order + FIRST_KEY
        order = order.flip(1) if task == "reverse" else order
    noise = torch.randint(NOISE, (batch, (distance - 1) * SEGMENT)) + FIRST_NOISE
    first = torch.stack([keys, values], dim=2).flatten(1)
    last = torch.stack([keys.gather(1, order), torch.full_like(keys, ASK)], dim=2).flatten(1)
    return torch.cat([first, noise, last], dim=1), values.gather(1, order)


def luna(args):
    """A Luna masked language model; with --carry none it reads the last segment alone."""
    options = {
        "encoder_embed_dim": WIDTH,
        "encoder_ffn_embed_dim": 2 * WIDTH,
        "encoder_layers": args.layers,
        "encoder_attention_heads": 4,
        "projection_length": args.rows,
        "max_positions": SEGMENT,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_init": "xavier",
        "encoder_normalize_before": args.normalize_before,
        "carry_packed": args.carry == "luna",
        "segment_length": SEGMENT,
    }
    task = SimpleNamespace(source_dictionary=DICTIONARY, max_positions=lambda: SEGMENT)
    model = LunaMaskedLM.build_model(argparse.Namespace(**options), task)
    return model, lambda tokens: model(tokens[:, -SEGMENT:] if args.carry == "none" else tokens)[0]


class RecurrentMemoryTransformer(nn.Module):
    """Softmax attention over a segment and as many vectors of memory as P has rows, which are carried on."""

    def __init__(self, rows, layers):
        super().__init__()
        self.embed = nn.Embedding(len(DICTIONARY), WIDTH)
        self.positions = nn.Parameter(torch.randn(SEGMENT, WIDTH) * 0.02)
        self.memory = nn.Parameter(torch.randn(rows, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, tokens):
        """Logits of the last segment [B, SEGMENT, V]."""
        memory = self.memory.expand(tokens.size(0), -1, -1)
        for segment in tokens.split(SEGMENT, dim=1):
            x = self.encoder(torch.cat([memory, self.embed(segment) + self.positions], dim=1))
            memory, x = x.split([memory.size(1), SEGMENT], dim=1)
        return F.linear(x, self.embed.weight)


def answers(read, tokens):
    """Logits [B, PAIRS, V] where the last segment asks."""
    return read(tokens)[:, -SEGMENT:][:, 1::2]


def train(model, read, args):
    """Train for so many updates; the greatest distance reached, and the processor's seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    reached, right, start = 1, 0.0, time.process_time()
    for update in range(1, args.updates + 1):
        distance = reached if random.random() < 0.5 else 2 ** random.randrange(reached.bit_length())
        tokens, target = examples(args.task, distance)
        logits = answers(read, tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, update / 100)
        optimizer.step()
        if distance == reached:
            right = 0.9 * right + 0.1 * (logits.argmax(-1) == target).float().mean().item()
            if right >= 0.9 and reached < DISTANCES[-1]:
                reached, right = 2 * reached, 0.0
                seconds = time.process_time() - start
                print(f"{seconds:.0f} s, update {update}: distance {reached}", flush=True)
    return reached, round(time.process_time() - start)


def plot(path, results):
    """Draw the right answers of each result, a file of --json, against the distance."""
    check_plot(path, "--plot")
    figure = new_figure(figsize=(7, 4))
    axes = figure.subplots()
    for result in (json.loads(file.read_text(encoding="utf-8")) for file in results):
        right = [100 * result["recall"][str(distance)] for distance in DISTANCES]
        name = {"luna": "carried P", "none": "not carried", "transformer": "memory Transformer"}[
            result["carry"]
        ]
        axes.plot(DISTANCES, right, marker="o", label=f"{name}, {result['rows']} rows, {result['task']}")
    axes.axhline(100 / VALUES, color="grey", linestyle=":", label="chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(DISTANCES, [str(distance) for distance in DISTANCES])
    axes.set(xlabel="segments between question and answer", ylabel="right, %", ylim=(0, 102))
    axes.legend()
    save_png(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--carry", choices=["none", "luna", "transformer"], default="luna")
    parser.add_argument("--task", choices=["associative", "copy", "reverse"], default="copy")
    parser.add_argument("--rows", type=int, default=16, help="l, or vectors of the Transformer's memory")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--normalize-before", action="store_true", help="pre-norm: P is a plain residual sum")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", type=Path, help="train nothing, and draw these results of --json")
    parser.add_argument("results", type=Path, nargs="*")
    args = parser.parse_args()
    if args.plot:
        return plot(args.plot, args.results)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    if args.carry == "transformer":
        model = read = RecurrentMemoryTransformer(args.rows, args.layers)
    else:
        model, read = luna(args)
    reached, seconds = train(model, read, args)
    recall = {}
    with torch.no_grad():
        for distance in DISTANCES:
            tokens, target = examples(args.task, distance, batch=256)
            recall[distance] = (answers(read, tokens).argmax(-1) == target).float().mean().item()
    parameters = sum(p.numel() for p in model.parameters())
    options = {
        name: getattr(args, name)
        for name in ("carry", "task", "rows", "layers", "normalize_before", "lr", "updates", "seed")
    }
    result = {**options, "reached": reached, "seconds": seconds, "parameters": parameters}
    print(json.dumps({**result, "recall": recall}))
    if args.json:
        args.json.write_text(json.dumps({**result, "recall": recall}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
