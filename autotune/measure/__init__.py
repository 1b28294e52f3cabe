"""Configurations to measurements: compiled, verified and timed in processes of their own."""
