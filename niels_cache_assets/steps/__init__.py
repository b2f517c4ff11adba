"""Steps: functions that take a document and return it, changed or not, or a reason to drop it. A data set names its own in `steps`.

The shipped cleaning is one of the steps. No module here reads or writes files.
"""
