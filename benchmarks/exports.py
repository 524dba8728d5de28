"""Do exports say what the run says? Greedy search of real sentences, one by one, in float32.

    OMP_NUM_THREADS=1 python benchmarks/exports.py RUN --source data/europarl-de-en/test.de.gz --out exports.json

At every depth, what Hugging Face `generate` and CTranslate2 say with an export, word for word beside our own. Where a
sentence differs, by how much the logits of the first word that does differ: below 1e-4 it is a tie that rounding
decides.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from cpu_depths import generating, ours, translating
from speculation import TIE, gap

import anydepth
from anydepth.evaluation.texts import read_texts
from anydepth.interop import ctranslate2, huggingface
from anydepth.interop.ctranslate2 import CTranslate2Run
from anydepth.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line, also .gz")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--depths", nargs="+", help="default: all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run = anydepth.load(args.run, "cpu")
    texts = [text for text in read_texts(args.source) if text.strip()][: args.sentences]
    rows = []
    for depth in args.depths or run.depths():
        rows.append({"depth": depth, "sentences": len(texts)} | compared(run, texts, depth))
        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def compared(run: Run, texts: list[str], depth: str) -> dict[str, Any]:
    """For each engine, how far apart the words were in each sentence that differs."""
    sentences = run.sources(texts, run.key)
    expected = ours(run, sentences, depth, "float32")()
    with tempfile.TemporaryDirectory() as folder:
        huggingface.export(run, depth, Path(folder) / "huggingface")
        at = ctranslate2.export(run, depth, Path(folder) / "ctranslate2", "float32")
        engine = CTranslate2Run.opened(run, at, depth).engine(run.plan(depth), run.key)
        works = {
            "huggingface": generating(run, sentences, Path(folder) / "huggingface", "float32"),
            "ctranslate2": translating(run, sentences, engine),
        }
        found = {name: work() for name, work in works.items()}
    gaps = {
        name: [gap(run, text, depth, a, b) for text, a, b in zip(texts, expected, each) if a != b]
        for name, each in found.items()
    }
    return {f"{name} differs": len(some) for name, some in gaps.items()} | {
        f"{name} by more than {TIE:g}": sum(one >= TIE for one in some) for name, some in gaps.items()
    }


if __name__ == "__main__":
    main()
