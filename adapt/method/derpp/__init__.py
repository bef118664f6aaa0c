"""DER++ replays past rows: `method` is the plug-in with its options, `reservoir` stores and replays sampled rows."""
