"""Collect peaks, keep the corpus, fit, evaluate."""
