"""Operators whose floating results are copied, chosen or formed without rounding: exact to the bit."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

from tapestry.numerics.arguments import names
from tapestry.numerics.facts import CallFacts

_EXACT = names("""
    clone copy contiguous cat concat concatenate stack hstack vstack dstack column_stack block_diag gather index
    index_select take take_along_dim embedding where masked_fill masked_select masked_scatter index_copy index_fill
    slice_scatter select_scatter diagonal_scatter as_strided_scatter flip fliplr flipud roll rot90 repeat
    repeat_interleave tile constant_pad_nd pad _pad_circular reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d tril triu diag diag_embed fill full full_like new_full zeros
    zeros_like new_zeros ones ones_like new_ones eye scalar_tensor lift_fresh lift_fresh_copy relu relu6 hardtanh clamp
    clamp_min clamp_max clip threshold hardshrink abs absolute neg negative sign sgn positive floor ceil trunc fix
    maximum minimum max min amax amin aminmax fmax fmin sort msort topk kthvalue median nanmedian mode cummax cummin
    max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_unpool2d max_unpool3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle unfold im2col
    nan_to_num copysign nextafter frexp heaviside dropout native_dropout alpha_dropout feature_dropout to _to_copy
    type_as real imag view_as_real view_as_complex conj conj_physical resolve_conj resolve_neg one_hot meshgrid
    combinations cartesian_prod unique _unique2 unique_consecutive unique_dim put scatter index_put fill_diagonal
    view reshape _reshape_copy _unsafe_view _unsafe_index _unsafe_masked_index item _local_scalar_dense tensor_split
    nonzero bucketize searchsorted tril_indices triu_indices pad_sequence rename constant narrow_copy
    unsafe_split unsafe_split_with_sizes unsafe_chunk hsplit vsplit dsplit set_data to_dense segment ravel
    logical_not isnan isinf atleast_1d atleast_2d atleast_3d broadcast_tensors
    detach zero diagflat fft_fftshift fft_ifftshift _chunk_cat lu_unpack fractional_max_pool2d fractional_max_pool3d
    resize_as fractional_max_pool1d _stack row_stack
    squeeze unsqueeze t transpose swapaxes swapdims as_strided set lift data _copy_from _lazy_clone _cast_Float
    _cast_Double _cast_Half _reshape_from_tensor _to_cpu _to_dense _pin_memory _pad_enum _pad_packed_sequence
    flatten_dense_tensors unflatten_dense_tensors _add_batch_dim _remove_batch_dim _conj_physical _unique
    unique_dim_consecutive linalg_matrix_rank requires_grad _aminmax _resize_output _copy_from_and_resize""")
#: What a reduction by index may be asked to choose; then nothing rounds.
_CHOICES = frozenset({"amax", "amin", "max", "min"})
_BAGS = names("embedding_bag _embedding_bag _embedding_bag_forward_only")


def is_exact(facts: CallFacts) -> bool:
    """Whether nothing in the call rounds: known copies and choices, and everything that returns a view."""
    name = facts.name
    if facts.has_nothing:
        return True  # a reduction of nothing is its identity
    if name in ("sgn", "abs", "absolute") and facts.has_complex:
        return False
    if facts.bound.get("reduce") in _CHOICES or (name in _BAGS and facts.bound.get("mode") == 2):
        return True
    if name == "bincount":
        return facts.bound.get("weights") is None
    if name in ("scatter", "index_put", "_index_put_impl", "put"):
        return facts.bound.get("reduce") is None and not facts.bound.get("accumulate", False)
    return name in _EXACT or _returns_view(facts.target)


@cache
def _returns_view(target: OpOverload) -> bool:
    if torch.Tag.view_copy in target.tags:
        return True
    returns = target._schema.returns
    return bool(returns) and all(entry.alias_info is not None and not entry.alias_info.is_write for entry in returns)
