"""What stands beside a Hugging Face model: how to use it with `transformers`, without our package."""

from anydepth.interop.export_readme import limit, page
from anydepth.plan import Plans
from anydepth.run import Run

CODE = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

words = AutoTokenizer.from_pretrained(".")  # also writes the marks that the model expects
model = AutoModelForSeq2SeqLM.from_pretrained(".").eval()


def translate(texts):
    sources = words(texts, padding=True{cut}, return_token_type_ids=False, return_tensors="pt")
    longest = sources.input_ids.shape[1] - 1
    found = model.generate(**sources, max_new_tokens={limit})  # the rest is in generation_config.json
    return words.batch_decode(found, skip_special_tokens=True)


print(translate(["A text."]))"""


def readme(run: Run, plans: Plans) -> str:
    cut = ", truncation=True" if run.config.data.max_source else ""
    code = CODE.format(cut=cut, limit=limit(run))
    return page(plans, "huggingface", "Hugging Face transformers", "transformers torch", "num_beams=1", code)
