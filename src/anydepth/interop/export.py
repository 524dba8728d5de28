"""One depth or one language of a run, for ourselves or for another engine."""

from pathlib import Path

from anydepth.errors import UserError
from anydepth.interop import ctranslate2, huggingface
from anydepth.interop.extract import extract, extract_languages
from anydepth.run import Run


def export_run(
    run: Run,
    out: Path,
    to: str,
    depth: str | None = None,
    language: str | None = None,
    quantization: str | None = None,
) -> Path:
    if quantization and to != "ctranslate2":
        raise UserError(f"--quantization: only with --to ctranslate2, not {to}")
    if quantization and quantization not in ctranslate2.QUANTIZATIONS:
        raise UserError(f"--quantization {quantization}: expected one of {', '.join(ctranslate2.QUANTIZATIONS)}")
    if language == "all":
        if depth:
            raise UserError("--depth: with --language all every language keeps its own")
        if to != "anydepth":
            raise UserError(f"--language all: {to} runs one plan for every text; export each language by itself")
        return extract_languages(run, out)
    run = run.in_language(language)
    if to == "ctranslate2":
        return ctranslate2.export(run, depth, out, quantization)
    return (huggingface.export if to == "huggingface" else extract)(run, depth, out)
