"""Judging trained models: n-gram baselines and statistics. Knows the model, not the trainer."""
