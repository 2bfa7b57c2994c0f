"""Random weights under which activations stay near one, so that a relative error means something.

Scales after He et al., arXiv 1502.01852 (convolutions before ReLU) and Glorot & Bengio 2010 (the rest).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tapestry.program.inputs import CallArgs

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


@torch.no_grad()
def sane_weights(module: nn.Module) -> None:
    """Redraw all weights from the default generator: matrices by their fan-in, biases and norms away from 0 and 1."""
    for name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            parameter.normal_(1.0 if "weight" in name else 0.0, 0.1)
        else:
            parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.weight.normal_(0.0, 1.0)
        elif isinstance(part, _CONVOLUTIONS):
            nn.init.kaiming_normal_(part.weight)


@torch.no_grad()
def calibrate(module: nn.Module, calls: Sequence[CallArgs]) -> None:
    """Set the statistics of batch norms to the means and variances over these calls; leaves inference mode on."""
    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORMS)]
    for norm in norms:
        norm.reset_running_stats()
        # None: the plain average over the calls instead of an exponential one.
        norm.momentum = None
    module.train()
    for call in calls:
        module(*call.args, **call.kwargs)
    module.eval()
