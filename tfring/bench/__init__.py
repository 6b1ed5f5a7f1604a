"""``tfring bench``: how fast collectives, sets of gradients and training steps are here.

The command and the comparison of results load no TensorFlow; `worker` is the program of each rank.
"""
