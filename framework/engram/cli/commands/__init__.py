"""What the groups of `engram` take: names, options, help. What they do is in the modules beside this folder."""
