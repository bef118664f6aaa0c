"""From files to token streams: manifest, read, clean, tokenize, shards, order, stream."""
