"""Pretraining of BERT by the mixed-batch recipe, from text to SQuAD."""

__version__ = "0.1.0"
