"""Speculative decoding whose draft model learns from the traffic it serves."""
