"""Distilling a draft model from a target: corpus, draft vocabulary, student, training, evaluation.

The target answers prompts (generation) and what it said is kept with its likeliest alternatives
(corpus). A student made of a few of its layers (student) learns to say the same over the ids that
matter (vocabulary). Knows no service; what comes out is a folder that `paceline.model` opens.
"""
