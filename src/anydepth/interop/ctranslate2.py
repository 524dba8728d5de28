"""A depth as a CTranslate2 model, and that engine in the place of our own search."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anydepth.decoding.decoder import DecodingConfig, Hypothesis, Precision
from anydepth.decoding.recorded import Found
from anydepth.errors import UserError
from anydepth.files import new_folder, write_durably
from anydepth.interop.ctranslate2_readme import readme
from anydepth.interop.unrolled import unrolled
from anydepth.models import Translator
from anydepth.nn.embeddings import Embedding
from anydepth.plan import Plans
from anydepth.run import Batch, Run

NAME = "ctranslate2"
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


def package() -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise UserError("CTranslate2 is not installed: pip install ctranslate2") from None
    return ctranslate2


def export(run: Run, depth: str | None, out: Path, quantization: str | None = None) -> Path:
    return write(run, run.plan(depth), out, quantization)


def write(run: Run, plans: Plans, out: Path, quantization: str | None = None) -> Path:
    """Writes the folder that `ctranslate2.Translator` reads, with the tokenizers and how to use it."""
    package()
    with new_folder(out) as folder:
        described = spec(run, unrolled(run, plans, NAME))
        described.validate()
        described.optimize(quantization=quantization)
        described.save(str(folder))
        run.tokenizers.save(folder)
        write_durably(folder / "README.md", readme(run, plans, quantization))
    return out


def spec(run: Run, model: Translator) -> Any:
    from ctranslate2 import specs

    config, layer = model.config, model.config.layer
    described = specs.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers),
        layer.heads,
        pre_norm=layer.norm == "pre",
        activation=specs.Activation.RELU if layer.activation == "relu" else specs.Activation.GELU,
        layernorm_embedding=config.embedding_norm,
    )
    described.config.layer_norm_epsilon = layer.norm_epsilon
    embed(described.encoder.embeddings[0], described.encoder, model.source)
    embed(described.decoder.embeddings, described.decoder, model.target)
    for written, ours, norm in (
        (described.encoder, model.encoder, model.bridge.norm),
        (described.decoder, model.decoder, model.norm),
    ):
        for place, part in zip(written.layer, ours.layers):
            put_layer(place, part)
        if isinstance(norm, nn.LayerNorm):
            put_norm(written.layer_norm, norm)
    described.decoder.projection.weight = array(model.output.weight)
    register(described, run)
    return described


def register(described: Any, run: Run) -> None:
    source, target = run.tokenizers.source, run.tokenizers.target
    names = target.tokens
    described.register_source_vocabulary(source.tokens)
    described.register_target_vocabulary(names)
    described.config.bos_token = described.config.decoder_start_token = names[target.bos]
    described.config.eos_token, described.config.unk_token = names[target.eos], names[target.unk]
    described.config.add_source_bos, described.config.add_source_eos = False, False  # we write the end mark


def embed(words: Any, side: Any, embedding: Embedding) -> None:
    words.weight, words.multiply_by_sqrt_depth = array(embedding.words.weight), True
    table = embedding.waves if embedding.learned is None else embedding.learned.weight
    side.position_encodings.encodings = array(table)
    if isinstance(embedding.norm, nn.LayerNorm):
        put_norm(side.layernorm_embedding, embedding.norm)


def put_layer(place: Any, layer: Any) -> None:
    put_linear(place.self_attention.linear[0], layer.attention.qkv)
    put_linear(place.self_attention.linear[1], layer.attention.out)
    put_norm(place.self_attention.layer_norm, layer.attention_norm)
    if layer.cross is not None:
        put_linear(place.attention.linear[0], layer.cross.query)
        put_linear(place.attention.linear[1], layer.cross.key_value)
        put_linear(place.attention.linear[2], layer.cross.out)
        put_norm(place.attention.layer_norm, layer.cross_norm)
    put_linear(place.ffn.linear_0, layer.grow)
    put_linear(place.ffn.linear_1, layer.shrink)
    put_norm(place.ffn.layer_norm, layer.ffn_norm)


def put_linear(place: Any, linear: nn.Linear) -> None:
    place.weight = array(linear.weight)
    if linear.bias is not None:
        place.bias = array(linear.bias)


def put_norm(place: Any, norm: Any) -> None:
    place.gamma, place.beta = array(norm.weight), array(norm.bias)


def array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


# ---- the engine


def translator(folder: Path) -> Any:
    return package().Translator(str(folder), device="cpu", intra_threads=torch.get_num_threads())


class CTranslate2Run(Run):
    """A run whose searches CTranslate2 does, on the CPU, with an export that is made at the first need and kept in the
    run's folder."""

    engine_name = NAME
    quantization: str | None = None

    @classmethod
    def of(cls, run: Run, quantization: str | None = None) -> "CTranslate2Run":
        package()
        made = cls(run.config, run.model, run.tokenizers, run.folder, run.weights, run.key)
        made.quantization, made.engines = quantization, {}
        return made

    @classmethod
    def opened(cls, run: Run, folder: Path, depth: str) -> "CTranslate2Run":
        """With an export that was made before, of this depth and the run's language."""
        made = cls.of(run)
        made.engines[run.plan(depth), run.key] = translator(folder)
        return made

    engines: dict[tuple[Plans, str], Any]
    """Loaded exports, by plans and language."""

    def searches(self, batches: Iterable[Batch], precision: Precision, at_once: int) -> Iterator[Found]:
        return (self.search(*batch) for batch in batches)

    def search(
        self, sources: list[list[int]], numbers: list[int], plans: Plans, key: str, decoding: DecodingConfig
    ) -> Found:
        if decoding.sample:
            raise UserError("--sample: not with --engine ctranslate2")
        if decoding.exit:
            raise UserError("exit: CTranslate2 runs all layers for every word; set decoding.exit to 0")
        limits = [min(decoding.most_tokens(len(ids)), self.config.model.max_positions) for ids in sources]
        names, target = self.tokenizers.source.tokens, self.tokenizers.target
        written = target.tokens
        found = self.engine(plans, key).translate_batch(
            [[names[number] for number in self.ended(ids)] for ids in sources],
            beam_size=decoding.beam,
            num_hypotheses=decoding.n_best,
            length_penalty=decoding.length_penalty,
            max_decoding_length=max(limits),
            min_decoding_length=decoding.min_length,
            no_repeat_ngram_size=decoding.block_ngrams,
            return_scores=True,
            suppress_sequences=[[written[number]] for number in sorted({target.bos, target.pad} - {target.eos})],
        )
        return [self.hypotheses(one, limit, decoding) for one, limit in zip(found, limits)]

    def hypotheses(self, found: Any, limit: int, decoding: DecodingConfig) -> list[Hypothesis]:
        ids = self.tokenizers.target.ids
        made = []
        for tokens, score in zip(found.hypotheses, found.scores):
            # it counts the end mark
            length = len(tokens) + 1
            made.append(
                Hypothesis([ids[token] for token in tokens][:limit], score, score * length**decoding.length_penalty)
            )
        return made

    @property
    def preparations(self) -> int:
        return len(self.engines)

    def engine(self, plans: Plans, key: str) -> Any:
        if (plans, key) not in self.engines:
            self.engines[plans, key] = translator(self.exported(plans, key))
        return self.engines[plans, key]

    def exported(self, plans: Plans, key: str) -> Path:
        assert self.folder is not None
        # not the weights alone: other settings for a call run other layers of them under the same depth
        made_from = repr((self.weights_hash, self.config.model, plans))
        parts = [plans.name, key, self.quantization or "", hashlib.sha256(made_from.encode()).hexdigest()[:12]]
        folder = self.folder / "exports" / "-".join([NAME, *(part for part in parts if part)])
        try:
            return folder if folder.exists() else write(self.in_language(key or None), plans, folder, self.quantization)
        except UserError:
            if not folder.exists():
                raise
            return folder  # another process was faster
