"""Multi-Head Linear Attention (arXiv:2601.07832) for PyTorch, on the CPU."""

from mhla_torch.operators import bidirectional, causal, linear, locality

__all__ = ["bidirectional", "causal", "linear", "locality"]
