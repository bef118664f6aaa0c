"""DER++: rows of the past come again, with what the model made of them. `reservoir` keeps them, `method` replays."""
