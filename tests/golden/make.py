"""Makes the golden model and what it must say for ever: `python tests/golden/make.py` (some minutes on one core).

    model/         a run folder as a training leaves it: config.toml, model.safetensors, tokenizer.json
    outputs.json   a few sentences and their translations at every depth, greedy and with a beam of 4

The tests compare with the files that were committed; they never run this. Make them anew only when old runs are meant
to stop loading (a new schema): whatever else changes the outputs is a bug.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from anydepth.config import loads
from anydepth.data.builtin import pairs
from anydepth.run import Run, Translation, load
from anydepth.training.loop import train

HERE = Path(__file__).parent
FILES = ("config.toml", "model.safetensors", "tokenizer.json")
SEARCHES = {"greedy": 1, "beam": 4}
SENTENCES = 8
MARGIN = 1e-3
"""Other machines round differently, by about 1e-6: a closer choice between two words is not golden."""

RECIPE = """
[data]
train = [{ type = "builtin", source = "en", target = "de", size = 30_000 }]
dev = { type = "builtin", source = "en", target = "de", size = 500 }
max_length = 40  # the shorter sentences are learnt sooner

[tokenizer]
vocabulary = 450

[batching]
tokens = 1024

[model.layer]
width = 32
ffn = 64
heads = 4
dropout = 0.0

[model.encoder]
layers = 2
depth = { type = "prefix" }

[model.decoder]
layers = 2
depth = { type = "prefix" }

[training]
steps = 3000
validate_every = 1000
validate_depths = ["1-1", "2-2"]
device = "cpu"

[training.optimizer]
learning_rate = 5e-3
warmup = 200
schedule = "linear"
"""


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = train(loads(RECIPE), Path(folder) / "run")
        (HERE / "model").mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(made / name, HERE / "model" / name)
    run = load(HERE / "model", device="cpu")
    sentences = chosen_sentences(run)
    golden = {
        "sentences": sentences,
        "outputs": {
            depth: {search: [said(run, text, depth, beam) for text in sentences] for search, beam in SEARCHES.items()}
            for depth in run.depths()
        },
    }
    (HERE / "outputs.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{len(sentences)} sentences at {', '.join(run.depths())}")


def said(run: Run, text: str, depth: str, beam: int) -> dict[str, Any]:
    [[best]] = run.translations([text], depth, beam=beam)
    return {"text": best.text, "log_probability": round(best.log_probability, 4)}


def chosen_sentences(run: Run) -> list[str]:
    """Short sentences that are translated one way by half of the network and another way by all of it."""
    chosen = []
    for text, _ in pairs("en", "de", "test", 2000):
        if 20 < len(text) < 60 and is_golden(run, text):
            chosen.append(text)
        if len(chosen) == SENTENCES:
            return chosen
    raise RuntimeError(f"only {len(chosen)} of {SENTENCES} sentences found")


def is_golden(run: Run, text: str) -> bool:
    greedy = {depth: run.translations([text], depth, beam=1)[0][0] for depth in run.depths()}
    clear = all(is_clear(run, text, depth, best) for depth, best in greedy.items())
    return clear and greedy["1-1"].text != greedy["2-2"].text


@torch.no_grad()
def is_clear(run: Run, text: str, depth: str, greedy: Translation) -> bool:
    """Whether no choice of the greedy search and of the end of the beam search is close."""
    [hypotheses] = run.translations([text], depth, beam=4, n_best=4)
    decoder = run.model.start(torch.tensor([run.ended(run.tokenizers.source.encode([text])[0])]), run.plan(depth))
    target = run.tokenizers.target
    gaps = [hypotheses[0].score - hypotheses[1].score]
    for token in [target.bos, *greedy.tokens]:
        best, second = torch.log_softmax(decoder.step(torch.tensor([token])), -1).topk(2).values[0].tolist()
        gaps.append(best - second)
    return min(gaps) > MARGIN


if __name__ == "__main__":
    main()
