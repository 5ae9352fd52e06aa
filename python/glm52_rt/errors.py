"""Every exception that glm52-rt raises on purpose.

All of them are an Error, so `except rt.Error` catches what the runtime refused and nothing else. The message is one
sentence that names the file, the tensor or key, the number and the limit; the exception carries no other fields.
"""


class Error(Exception):
    """The runtime refused or failed; the message says what, where and against which limit."""


class ArgumentError(Error, ValueError):
    """A value handed in by the caller is outside its documented range."""


class ModelError(Error):
    """The file is not a well-formed GGUF of a GLM model, or one of its parts cannot be used."""


class ShapeError(Error):
    """A tensor or a hyperparameter contradicts the others."""


class UnsupportedError(Error):
    """Valid, but not something this build, machine or version does."""


class MemoryBudgetError(Error):
    """A plan needs more memory than it may use, or an allocation failed."""


class ContextError(Error):
    """A position outside the context."""


class CheckpointError(Error):
    """A checkpoint is damaged or belongs to another model."""


class IoError(Error):
    """The system refused a file operation, or a file ended early."""


class Cancelled(Error):
    """The caller's progress callback said stop; the object stands where the message says."""
