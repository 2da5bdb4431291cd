"""Paceline: lossless speculative sampling as services.

This package holds what two sides of a wire must agree on. Importing it loads nothing.
"""

__version__ = "0.1.0"
