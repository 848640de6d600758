"""``gpupipe pack``: write a dataset in another form, once, so that every epoch costs less.

A *form* converts the bytes of samples (:mod:`.images`). They are written to large files, *shards* (:mod:`.shards`), in
a format (:mod:`.formats`), by several processes (:mod:`.processes`). A journal lets a run continue after a kill
(:mod:`.journal`). :mod:`.verify` reads shards back.
"""
