"""One run: training, batches, evaluation, journal, seeds, workers, ranks."""
