"""What the toy machine says of a program that it cannot carry out, or that leaves a wrong end."""

WHERE = "line {line} has {verb} on rank {rank}"
NO_SHARDS = "in a pipeline each rank has layers of its own, so there is nothing to exchange so"
NOTHING_TO_SEND = "this rank has computed nothing for this batch yet"
AGAIN = "this batch has been through this layer already"
OTHERS_BATCH = "batch {batch} lies on rank {owner}: look at gpu.batches"
OTHERS_LAYER = "this rank has layers {first} to {last} only: look at gpu.layers"
NO_INPUT = "the output of layer {before} for batch {batch} is not here: compute or receive it first"
NO_ACTIVATION = (
    "there is no activation of layer {layer} for batch {batch}: its forward pass comes first, and "
    "one forward pass does for one backward pass"
)
NO_ERROR = (
    "the gradient that comes back from layer {after} for batch {batch} is not here: go backwards "
    "from the last layer, or receive it first"
)
CHANGED = "the weights of layer {layer} have changed since this batch's forward pass"
NO_GRADIENT = "there is no {kind} of layer {layer} here"
A_SHARD, A_WHOLE = "shard of a summed gradient", "whole gradient"
TWO_GRADIENTS = "there is another gradient of layer {layer} here, which is not summed yet"
NOT_WHOLE = "only a shard of the weights of layer {layer} is here: gather them first"
UNLIKE = "some shards of layer {layer} are updated, and others are not: gather the weights first"
NOTHING_TO_FREE = "the weights of layer {layer} are not whole here, so there is nothing to free"
ORDER = (
    "this is its exchange number {number}, and that of rank 0 is {first} (line {line}): all ranks "
    "must call the same exchanges in the same order, or they wait for each other for ever"
)
WAITS = "rank {rank} waits in {verb} (line {line})"
ALONE = "rank {rank} has called {verb} (line {line})"
NOT_CALLED = ", and rank {lacking} has not"
HANGS = "it hangs: {waits}"
GONE = "at the end {part} is not on rank {rank}"
NOT_UPDATED = (
    "at the end {part} on rank {rank} is what it was at the start: was it updated, and did this "
    "rank get it?"
)
MANY_STEPS = "{part} on rank {rank} has taken {steps} steps: add up all batches, then update once"
OTHER_SUM = (
    "{part} on rank {rank} was updated with a sum over these batches: {summed}. Each of the "
    "{batches} batches belongs into it, once"
)
FULL = "{where}: out of memory, because that makes {need:g} GB, and a GPU has {capacity:g} GB"
