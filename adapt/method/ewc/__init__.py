"""EWC: weights that past text depends on are held back. `options`, `fisher` (what is measured), `stage`, `method`."""
