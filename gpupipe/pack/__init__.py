"""``gpupipe pack``: a dataset written anew, once, so that every epoch after it costs less.

A *form* says what becomes of the bytes of samples (:mod:`.sliceable`), a writer where they go (:mod:`.folder`);
:mod:`.run` takes all samples from the one to the other in processes, and keeps a journal to go on by after a kill.
"""
