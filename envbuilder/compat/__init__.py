"""What can work together: tables of versions, rules on a recipe, and the nearest pins that pass.

It stands between `recipe`, which says what a person wants, and `lock`, which makes every choice. Others use `check` (judge a
recipe), `explain` (what follows from its pins), `context` (the tables in one object), `host_file` (facts of another
machine), `image_facts` (what a base image has) and `init` (a first recipe). `rules` and `suggest` are private to it.
"""
