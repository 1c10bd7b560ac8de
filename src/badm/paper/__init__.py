"""The paper word for word: partition, Algorithm 1, its theorem and problems to check it on."""

from badm.paper import algorithm1, theory

__all__ = ["algorithm1", "partition", "problems", "theory"]
