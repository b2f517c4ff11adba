"""The program `python -m tests.helpers.ui.quick ui`, which is `niels-cache ui` for the walk in the browser. Its daemon looks every second,
and a run is one process.

In the real program, the daemon looks for back-fills twice a minute, and a run imports everything again for each of its steps. The pages
show neither, and both would cost the walk minutes. tests/defs/ui/test_process.py tests the real program.
"""
