"""DER++: `method` is the plug-in and its options, `reservoir` keeps a sample of the rows and lets them come again."""
