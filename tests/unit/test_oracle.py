"""The best depth of every sentence: chosen right, counted once, shown."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from sacrebleu.metrics import BLEU, CHRF
from synthetic_runs import write_run

from anydepth.errors import UserError
from anydepth.evaluation import metrics
from anydepth.evaluation.metrics import Scorer, sentence_chrf
from anydepth.evaluation.records import Record, read_records
from anydepth.files import read_lines
from anydepth.reporting.report import write_report
from anydepth.selecting.oracle import choose, oracle

REFERENCES = ["the first sentence of three", "another one comes second", "and this is the end of it"]
OUTPUTS = {
    "1-1": [REFERENCES[0], "something else", "no idea"],
    "1-2": [REFERENCES[0], REFERENCES[1], "and this"],
    "2-1": [REFERENCES[0], REFERENCES[1], "and this is"],
    "2-2": ["the first", "another", REFERENCES[2]],
}
SECONDS = {"1-1": 1.0, "1-2": 4.0, "2-1": 2.0, "2-2": 8.0}


def cell(depth: str) -> dict[str, float]:
    encoder, decoder = map(int, depth.split("-"))
    scores = Scorer(REFERENCES).score(OUTPUTS[depth])
    cell = {"encoder": encoder, "decoder": decoder, "bleu": scores.bleu, "chrf": scores.chrf}
    return cell | {"seconds": SECONDS[depth]}


def test_ties_go_to_fewer_decoder_layers_then_fewer_encoder_layers() -> None:
    scorer = Scorer(REFERENCES)
    found = choose([cell(d) for d in OUTPUTS], {d: scorer.statistics(texts) for d, texts in OUTPUTS.items()})
    # 1: equally good at 1-1, 2-1 and 1-2; 2: at 2-1 and 1-2, of which the first has fewer decoder layers; 3: at 2-2
    assert found.choices == ["1-1", "2-1", "2-2"]
    assert (found.bleu, found.chrf) == (pytest.approx(100), pytest.approx(100))
    assert found.seconds == pytest.approx((1.0 + 2.0 + 8.0) / 3)
    shares = {(c["encoder"], c["decoder"]): (c["sentences"], c["share"]) for c in found.cells}
    assert shares == {(1, 1): (1, 1 / 3), (2, 1): (1, 1 / 3), (1, 2): (0, 0.0), (2, 2): (1, 1 / 3)}
    assert found.best == cell("2-1")
    assert found.deepest == cell("2-2")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return read_records([write_run(folder, encoders=(1, 3), decoders=(1, 2, 4), sentences=40)])[0]


def test_a_run_against_choosing_line_by_line(record: Record) -> None:
    found = oracle(record)
    folder = record.folders[0].path
    references = read_lines(folder / "outputs" / "reference.txt")
    fast_first = sorted(record.depths, key=lambda depth: tuple(map(int, reversed(depth.split("-")))))
    lines = {depth: read_lines(folder / "outputs" / f"{depth}.txt") for depth in fast_first}
    chosen = [
        max(fast_first, key=lambda depth: sentence_chrf(lines[depth][i], references[i])) for i in range(len(references))
    ]
    assert found.choices == chosen
    assert len(set(chosen)) > 2
    texts = [lines[depth][i] for i, depth in enumerate(chosen)]
    assert found.bleu == BLEU(force=True).corpus_score(texts, [references]).score
    assert found.chrf == CHRF().corpus_score(texts, [references]).score
    seconds = {f"{c['encoder']}-{c['decoder']}": c["seconds"] for c in record.cells}
    assert found.seconds == pytest.approx(sum(seconds[depth] for depth in chosen) / len(chosen))


def test_counts_are_kept_and_counted_again_only_if_they_must(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    before, folder = oracle(record), record.folders[0].path
    assert len(list((folder / "statistics").iterdir())) == 6
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "Scorer", None)  # no counting
        assert oracle(record) == before
    (folder / "statistics" / "3-4.npz").write_bytes(b"damaged")
    assert oracle(record) == before
    output = folder / "outputs" / "1-1.txt"
    kept = output.read_text()
    try:
        output.write_text((folder / "outputs" / "reference.txt").read_text())
        assert set(oracle(record).choices) == {"1-1"}
    finally:
        output.write_text(kept)


def test_nothing_to_choose_from_is_said(record: Record, tmp_path: Path) -> None:
    (single,) = read_records([write_run(tmp_path / "single", encoders=(2,), decoders=(2,), sentences=3)])
    with pytest.raises(UserError, match="its grid has one depth, 2-2"):
        oracle(single)
    folder = write_run(tmp_path / "lost", encoders=(1, 2), decoders=(2,), sentences=3)
    (folder / "outputs" / "1-2.txt").unlink()
    with pytest.raises(UserError, match="depth 1-2 were not kept"):
        oracle(read_records([folder])[0])
    (folder / "grid.json").unlink()
    with pytest.raises(UserError, match=f"anydepth evaluate {folder}"):
        oracle(read_records([folder])[0])


def test_the_command(record: Record, cli: Cli) -> None:
    folder, found = record.folders[0].path, oracle(record)
    code, out, _ = cli("oracle", folder)
    assert code == 0
    assert f"{found.bleu:.2f}" in out
    for one in found.cells:
        assert f"{100 * one['share']:.1f}" in out
    told = json.loads(cli("oracle", folder, "--json")[1])
    assert told["choices"] == found.choices
    assert np.isclose(sum(one["share"] for one in told["cells"]), 1)


def test_the_report_shows_the_shares(record: Record, tmp_path: Path) -> None:
    page = write_report([record.folders[0].path], tmp_path / "report.html", samples=0).read_text()
    shown = page.split('<section id="oracle">')[1].split("</section>")[0]
    for one in oracle(record).cells:
        assert f"<title>{one['encoder']}-{one['decoder']}: {100 * one['share']:.1f} % of the sentences</title>" in shown
    assert f"{oracle(record).chrf:.2f}" in shown
