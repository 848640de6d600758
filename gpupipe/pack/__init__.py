"""``gpupipe pack``: write a dataset into tar files, once, so that every epoch costs less.

A *conversion* makes the bytes of samples smaller (:mod:`.images`). Several processes (:mod:`.processes`) write them to
large files, *shards* (:mod:`.shards`), as members of tar files (:mod:`.tar`). A journal lets a run continue after a
kill (:mod:`.journal`).
"""
