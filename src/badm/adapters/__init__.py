"""BADM for other frameworks: ``badm.adapters.optax`` for JAX, ``badm.adapters.keras`` for Keras 3.

Each needs its extra (``pip install "badm[jax]"``) and is imported by name; nothing else imports it.
"""
