"""How many layers a word needs, estimated before the model runs (depth-adaptive Transformers): from what a word tells
about the labels, or from how hard it is to guess."""
