"""Judging trained models: yardsticks and statistics. Knows the model, not the trainer."""
