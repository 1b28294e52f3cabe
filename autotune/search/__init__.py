"""Choosing what to measure next: the session and the strategies that search in it."""
