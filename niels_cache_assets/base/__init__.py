"""The lowest subpackage: documents, drop reasons, settings' helpers and small tools that every other subpackage may import."""
