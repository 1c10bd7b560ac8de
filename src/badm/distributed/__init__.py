"""Replicas that meet over ``torch.distributed``, and sharded parameters."""
