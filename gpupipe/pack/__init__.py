"""``gpupipe pack``: write a dataset in another form, once, so that every epoch costs less.

A *form* converts the bytes of samples (:mod:`.sliceable`, :mod:`.images`). They are written to files of the same names
(:mod:`.folder`), or to large files, *shards* (:mod:`.shards`), in a format (:mod:`.formats`). Both run in several
processes (:mod:`.processes`) and keep a journal, so that a run can be resumed after a kill (:mod:`.journal`).
:mod:`.verify` reads shards back.
"""
