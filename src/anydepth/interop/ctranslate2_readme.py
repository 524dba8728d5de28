"""What stands beside a CTranslate2 model: how to use it with that package and `tokenizers`, without ours."""

from anydepth.data.sources import BETWEEN_SENTENCES
from anydepth.data.tokenizer import tags_of
from anydepth.interop.export_readme import limit, page
from anydepth.plan import Plans
from anydepth.run import Run

CODE = """\
{imports}

words, said = (tokenizers.Tokenizer.from_file(name) for name in ({source!r}, {target!r}))
words.encode_special_tokens = True  # a mark that is written in a text is text
engine = ctranslate2.Translator(".")
front = {front!r}{others}


{reading}


def translate(texts):
    sources = [[*front, *read(text)]{cut} + [{eos!r}] for text in texts]
    longest = max(len(source) - 1 for source in sources)
    found = engine.translate_batch(
        sources,
        beam_size={beam},
        length_penalty={length_penalty:g},
        max_decoding_length={limit},
        min_decoding_length={min_length},
        no_repeat_ngram_size={block_ngrams},
        suppress_sequences={never!r},
        max_input_length=0,
    )
    return [said.decode([said.token_to_id(token) for token in one.hypotheses[0]]) for one in found]


print(translate(["A text."]))"""

READ_TEXT = """\
def read(text):
    return words.encode(text, add_special_tokens=False).tokens"""

READ_SENTENCES = """\
def read(text):  # with an end mark between its sentences
    sentences = [one for one in re.split({pattern!r}, text.strip()) if one]
    each = [[*words.encode(one, add_special_tokens=False).tokens, {eos!r}] for one in sentences]
    return [token for sentence in each for token in sentence][:-1]"""


def readme(run: Run, plans: Plans, quantization: str | None) -> str:
    weights = "" if quantization in (None, "float32") else quantization
    return page(plans, "ctranslate2", "CTranslate2", "ctranslate2 tokenizers", "beam_size=1", code(run), weights)


def code(run: Run) -> str:
    """Reads texts and searches as the run does, as far as CTranslate2 has words for it."""
    data, decoding, names = run.config.data, run.config.decoding, run.tokenizers.source.tokens
    target, eos = run.tokenizers.target, names[run.tokenizers.source.eos]
    several = data.tags == "target" and not run.key
    tags = tags_of(data) if several else [names[number] for number in run.in_front(run.key)]
    reading = READ_SENTENCES.format(pattern=BETWEEN_SENTENCES.pattern, eos=eos) if data.sentences else READ_TEXT
    joint = run.tokenizers.joint
    return CODE.format(
        imports="\n".join([*(["import re", ""] if data.sentences else []), "import ctranslate2", "import tokenizers"]),
        source="tokenizer.json" if joint else "tokenizer.source.json",
        target="tokenizer.json" if joint else "tokenizer.target.json",
        front=tags[:1],
        others=f"  # the language to translate into; or {', '.join(tags[1:])}" if several and tags[1:] else "",
        reading=reading,
        cut=f"[:{data.max_source}]" if data.max_source else "",
        eos=eos,
        beam=decoding.beam,
        length_penalty=decoding.length_penalty,
        limit=limit(run),
        min_length=decoding.min_length,
        block_ngrams=decoding.block_ngrams,
        never=[[target.tokens[number]] for number in sorted({target.bos, target.pad} - {target.eos})],
    )
