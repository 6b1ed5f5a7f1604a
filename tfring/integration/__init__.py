"""The parts of tfring that packages on top of it use, besides its public names.

`tfring.ray` and `tfring.spark` start jobs on other engines; `tfring.horovod` lets programs import
tfring as Horovod. Like an outside project, they import from public modules and from here only.
`tfring help integration` has a table; __init__.pyi lists the names. Each is loaded on first use.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
