"""``gpupipe pack``: a dataset written anew, once, so that every epoch after it costs less.

A *form* says what becomes of the bytes of samples (:mod:`.sliceable`, :mod:`.images`). They go into files of the same
names (:mod:`.folder`) or into large files, *shards* (:mod:`.shards`), of a format (:mod:`.formats`). Both work in
processes (:mod:`.processes`) and keep a journal to go on by after a kill (:mod:`.journal`). :mod:`.verify` reads shards
back.
"""
