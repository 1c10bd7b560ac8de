"""Networks of the tasks, as Keras builds them."""
