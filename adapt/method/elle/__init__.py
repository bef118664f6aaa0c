"""ELLE: the model grows before each domain, and text of the domains before comes again where it helps most.

`growth` says by how much, and what that makes of a config.json; `grow` makes the larger model's weights; `memory` reads
past text and chooses the domain; `method` trains.
"""
