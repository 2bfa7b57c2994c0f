"""Small models of many kinds, with random but sane weights: what Tapestry is tried on (``zoo:NAME``)."""
