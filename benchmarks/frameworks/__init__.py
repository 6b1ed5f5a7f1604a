"""The same Keras models trained by tfring and by what users would pick instead."""
