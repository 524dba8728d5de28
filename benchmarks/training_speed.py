"""Training speed against Hugging Face MBart of the same size, in one run on one machine.

    python benchmarks/training_speed.py                                    fixed shapes, random words
    python benchmarks/training_speed.py --data data/europarl-de-en         also real text, batching and loading included

The size is 6-6, width 512, feed-forward 1024, 4 heads, vocabulary 10,000; 16k target tokens a step; bfloat16 on a GPU.
Figures are target words (padding not counted) per second, the median of several windows after warm-up.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from anydepth.data.batching import Batches
from anydepth.data.collate import Batch, Packing, collate, prefetch, stream
from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data.cutting import BatchingConfig
from anydepth.data.store import Store, tokenize
from anydepth.data.tokenizer import TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import build
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.training.distributed import Ranks, pick_device
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step

PAD = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.de.gz and train.en.gz")
    parser.add_argument("--steps", type=int, default=40, help="steps in each timed window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=32, help="words a sentence for the fixed shape")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--work", type=Path, help="folder to keep the tokenized text in, for the next time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans anew for every shape, which would punish the rival most
    device = pick_device("auto")
    results: dict[str, float] = {}

    sentences = args.tokens // args.length
    source = torch.randint(4, 10_000, (sentences, args.length), device=device)
    target = torch.randint(4, 10_000, (sentences, args.length), device=device)
    fixed = (source, target, torch.ones_like(source), target.numel())

    def report(name: str, rate: float) -> None:
        results[name] = rate
        print(f"{name:40s} {rate:12,.0f} target tokens/s", flush=True)

    report("fixed shape, anydepth", time_ours(args, device, iter(lambda: packed(source, target), None)))
    report("fixed shape, MBart eager", time_mbart(args, device, iter(lambda: fixed, None), compiled=False))
    report("fixed shape, MBart compiled", time_mbart(args, device, iter(lambda: fixed, None), compiled=True))
    rival = max(results["fixed shape, MBart eager"], results["fixed shape, MBart compiled"])
    print(f"{'fixed shape, ratio':40s} {results['fixed shape, anydepth'] / rival:12.2f}")
    if args.data:
        with tempfile.TemporaryDirectory() as folder:
            store = prepare(args.data, args.work or Path(folder))
            ours = our_batches(store, args, device)
            report("real text, anydepth", time_ours(args, device, ours))
            ours.close()
            rows = padded_batches(store, args, device)
            report("real text, MBart eager", time_mbart(args, device, rows, compiled=False))
        print(f"{'real text, ratio':40s} {results['real text, anydepth'] / results['real text, MBart eager']:12.2f}")
    if args.out:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        result = {"device": name, "torch": torch.__version__, "tokens_per_second": results}
        args.out.write_text(json.dumps(result, indent=1))


def time_steps(args: argparse.Namespace, device: torch.device, step: Callable[[int], int]) -> float:
    """Median over windows of target words per second."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    number = 0
    for number in range(1, args.steps // 2 + 4):
        step(number)
    rates = []
    for _ in range(args.windows):
        wait()
        start, words = time.perf_counter(), 0
        for _ in range(args.steps):
            number += 1
            words += step(number)
        wait()
        rates.append(words / (time.perf_counter() - start))
    return statistics.median(rates)


def time_ours(args: argparse.Namespace, device: torch.device, batches: Iterator[Batch]) -> float:
    layer = LayerConfig(width=args.width, ffn=2 * args.width, heads=4, dropout=0.1)
    stack = StackConfig(layers=args.layers)
    model = Translator(TranslatorConfig(layer=layer, encoder=stack, decoder=stack), 10_000, 10_000, PAD).to(device)
    optimizer = OptimizerConfig(type="adamw", learning_rate=1e-4, warmup=100, clip=1.0)
    settings = TrainingConfig(optimizer=optimizer, label_smoothing=0.1)
    step = Step(model, Optimizers(model, optimizer), settings, seed=1, ranks=Ranks(0, 1, device))

    def once(number: int) -> int:
        batch = next(batches)
        step(number, [batch])
        return batch.tokens

    return time_steps(args, device, once)


Padded = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]


def time_mbart(args: argparse.Namespace, device: torch.device, batches: Iterator[Padded], compiled: bool) -> float:
    from transformers import MBartConfig, MBartForConditionalGeneration

    size = {"encoder_layers": args.layers, "decoder_layers": args.layers, "encoder_attention_heads": 4}
    config = MBartConfig(
        vocab_size=10_000, d_model=args.width, encoder_ffn_dim=2 * args.width, decoder_ffn_dim=2 * args.width,
        decoder_attention_heads=4, dropout=0.1, attention_dropout=0.0, activation_dropout=0.0,
        scale_embedding=True, use_cache=False, attn_implementation="sdpa", pad_token_id=PAD, **size,
    )  # fmt: skip
    model = MBartForConditionalGeneration(config).to(device).train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    clip = torch.nn.utils.clip_grad_norm_

    def once(number: int) -> int:
        source, target, mask, words = next(batches)
        shifted = torch.cat([target.new_ones(target.shape[0], 1), target[:, :-1]], 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = forward(input_ids=source, attention_mask=mask, decoder_input_ids=shifted).logits
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return words

    return time_steps(args, device, once)


def packed(source: torch.Tensor, target: torch.Tensor) -> Batch:
    """Equal sentences, one after the other."""
    count, length = source.shape
    starts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=source.device)
    positions = torch.arange(length, device=source.device).repeat(count)[None]
    packing = Packing(starts, -(-length // 64) * 64, positions)
    shifted = torch.cat([target.new_ones(count, 1), target[:, :-1]], 1)
    return Batch(
        source=source.view(1, -1), target_in=shifted.view(1, -1), target_out=target.view(1, -1),
        source_packing=packing, target_packing=packing, key="", tokens=target.numel(), sentences=count,
    )  # fmt: skip


def prepare(data: Path, folder: Path) -> Store:
    corpus = ParallelText(source=str(data / "train.de.gz"), target=str(data / "train.en.gz"))
    config = DataConfig(train=(corpus,))
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(TokenizerConfig(vocabulary=10_000), config, print).save(folder)
    tokenizers = TokenizerPair.load(folder)
    return tokenize(corpus, "train", tokenizers, folder / "store", config)


def our_batches(store: Store, args: argparse.Namespace, device: torch.device) -> Iterator[Batch]:
    """As in training: made ahead by a background thread, packed on a GPU."""
    packed = device.type == "cuda"
    batches = Batches([store], BatchingConfig(tokens=args.tokens, layout="packed" if packed else "padded"), seed=1)
    with prefetch(stream(batches, pin=packed)) as ahead:
        for batch, _ in ahead:
            yield batch.to(device)


def padded_batches(store: Store, args: argparse.Namespace, device: torch.device) -> Iterator[Padded]:
    """The plain way: sentences of similar length, padded, made on the training thread."""
    batches = Batches([store], BatchingConfig(tokens=args.tokens, layout="padded", lengths=1), seed=1)
    for _, pairs in batches:
        batch = collate(store, pairs, batches.limits).to(device)
        yield batch.source, batch.target_out, (batch.source != PAD).long(), batch.tokens


if __name__ == "__main__":
    np.random.seed(0)
    torch.manual_seed(0)
    main()
