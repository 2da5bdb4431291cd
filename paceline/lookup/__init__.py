"""Lookups: draft tokens copied from what was already said, without a draft model."""
