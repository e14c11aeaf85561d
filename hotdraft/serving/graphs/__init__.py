"""CUDA graphs of what recurs in every round."""
