"""From runs to findings: statistics, summaries, sentences."""
