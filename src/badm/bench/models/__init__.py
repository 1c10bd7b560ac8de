"""Networks of the tasks, with the layers and initialisation of Keras."""
