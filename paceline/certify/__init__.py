"""Certify: black-box checks of a running gateway. Speculation may change speed and nothing else.

Asks through the gateway's own door, as any client does; knows no model and loads no torch.
"""
