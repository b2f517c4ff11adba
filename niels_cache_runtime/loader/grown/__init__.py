"""Loading a state after a cache has grown.

epochs.py   the samples of each epoch, before and after the growth
caches.py   the proof that the old cache is the beginning of the new one
"""
