"""DDP's own mixed precision: passes compute with copies of the parameters in a lower precision.

What is copied, cast and waited for, on which stream, is torch's own code; the optimizer sees
parameters and gradients of full precision. The averages are those that this code means: torch
2.15's reducer, in C++, keeps views of other memory than it exchanges, and so hands out the average
of what nobody has written in the first step, and with `gradient_as_bucket_view=True` old gradients
from the third step on. Here every step has its own.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import mixed_precision_hooks
from torch.nn.parallel import distributed as ddp_module

MixedPrecision = ddp_module._MixedPrecision
cast_inputs = ddp_module._cast_forward_inputs


def begin_mixed_precision(ddp: Any) -> None:
    """Cast the buffers of a DDP, and let its passes compute as its `mixed_precision` says."""
    types: MixedPrecision = ddp.mixed_precision
    ddp_module._setup_mixed_precision_params(types, ddp.module)
    ddp_module._cast_buffers(types, ddp.module)
    for number, parameter in enumerate(ddp.names):
        parameter._idx = number
    ddp._mp_stream = torch.Stream(ddp.device)
    ddp._submodule_to_event = defaultdict(deque)
    ddp.module.register_forward_pre_hook(ddp._root_copy_hook, with_kwargs=True)
    for module in ddp.module.modules():
        module.register_forward_pre_hook(ddp._module_wait_for_copy_hook, with_kwargs=True)
    state = mixed_precision_hooks._AllreduceUpcastHookState(
        weakref.ref(ddp), upcast_stream=torch.Stream(ddp.device)
    )
    ddp.register_comm_hook(state, mixed_precision_hooks._reducer_allreduce_and_upcast_hook)
    ddp.reducer._set_mixed_precision_param_dtype(types.param_dtype)
