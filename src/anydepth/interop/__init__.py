"""One depth as a model of its own: ours, or in the formats of CTranslate2 and Hugging Face; and BERT as a beginning."""
