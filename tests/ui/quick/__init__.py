"""`python -m tests.ui.quick ui`: `niels-cache ui` for the walk in the browser; its daemon looks every second, and a run is one process.

As the program is, the daemon looks for back-fills twice a minute, and a run imports everything once more for each of its steps. Neither is
what the pages show, and both would cost the walk minutes. tests/ui/test_ui_process.py holds the program as it is.
"""
