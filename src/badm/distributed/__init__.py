"""Train replicas over ``torch.distributed``, and step on sharded parameters.

``badm`` exports what scripts need: ``Consensus``, ``DistributedBatchSampler``,
``init_process_group`` and two exceptions. ``fsdp`` and ``heartbeat`` are internal.
"""

__all__ = ["consensus", "ranks", "sampler"]
