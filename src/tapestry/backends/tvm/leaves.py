"""The operators that nothing takes apart further: our converters and TVM's importer take them as they are.

A table, so that ``supports`` needs no TVM; a test compares it with the adapter. Left out although the importer has
them: those with an effect, random ones, those whose shape depends on values, and what it gets wrong in every case.
"""

from __future__ import annotations

_TABLE = """
__lshift__.Scalar __lshift__.Tensor __rshift__.Scalar __rshift__.Tensor _adaptive_avg_pool3d.default
_log_softmax.default _native_batch_norm_legit.no_stats _safe_softmax.default _softmax.default _to_copy.default
_upsample_bilinear2d_aa.default abs.default acos.default acosh.default add.Scalar add.Tensor alias.default
amax.default amin.default any.default any.dim any.dims arange.start_step asin.default asinh.default atan.default
atan2.default atanh.default avg_pool3d.default bitwise_and.Scalar bitwise_and.Tensor bitwise_left_shift.Tensor
bitwise_left_shift.Tensor_Scalar bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor
bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Tensor bmm.default
ceil.default clamp.Tensor clamp.default clone.default constant_pad_nd.default convolution.default cos.default
cosh.default diagonal.default div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode eq.Scalar eq.Tensor
erf.default exp.default exp2.default expand.default expm1.default flip.default floor.default fmod.Scalar
fmod.Tensor full.default gather.default ge.Scalar ge.Tensor gt.Scalar gt.Tensor hamming_window.default
hamming_window.periodic hamming_window.periodic_alpha hamming_window.periodic_alpha_beta hardtanh.default
index_select.default isinf.default isnan.default le.Scalar le.Tensor leaky_relu.default lift_fresh_copy.default
linalg_vector_norm.default log.default log10.default log1p.default log2.default logical_and.default
logical_not.default logical_or.default logical_xor.default lt.Scalar lt.Tensor max.default maximum.default
mean.default mean.dim min.default minimum.default mm.default mul.Scalar mul.Tensor ne.Scalar ne.Tensor
neg.default permute.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int
reciprocal.default relu.default remainder.Scalar remainder.Tensor repeat.default round.decimals round.default
rsqrt.default scalar_tensor.default sigmoid.default sign.default sin.default sinh.default slice.Tensor
slice_scatter.default sqrt.default squeeze.dims sub.Scalar sub.Tensor sum.dim_IntList tan.default tanh.default
trunc.default unsqueeze.default view.default where.self
"""

#: Overloads of ATen without the namespace.
LEAVES = frozenset(_TABLE.split())
