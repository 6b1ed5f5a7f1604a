"""What packages on top of tfring use of it, besides its public names.

`tfring.ray` and `tfring.spark` start jobs on engines of other projects, `tfring.horovod` lets
programs import tfring as Horovod. They import from public modules and from here, and from nothing
else, as a project of its own would. `tfring help integration` has a table; __init__.pyi lists the
names. Each is loaded when it is first used.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
