"""Multi-Head Linear Attention (arXiv:2601.07832) for PyTorch, on the CPU and on CUDA."""

from mhla_torch.attention import MHLA, replace_attention
from mhla_torch.block_stream import BlockState, BlockStream
from mhla_torch.formula import decay_matrix
from mhla_torch.kernels import FormulaWarning
from mhla_torch.layers import Language, Video, Vision
from mhla_torch.operators import (Explanation, bidirectional, block_causal, causal, cuda_built,
                                  distance_matrix, explain, linear, locality, resize)

__all__ = ["MHLA", "BlockState", "BlockStream", "Explanation", "FormulaWarning", "Language", "Video",
           "Vision", "bidirectional", "block_causal", "causal", "cuda_built", "decay_matrix",
           "distance_matrix", "explain", "linear", "locality", "replace_attention", "resize"]
