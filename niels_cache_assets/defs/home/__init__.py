"""The Dagster home, which is the folder of Dagster's files. The modules handle its instance, its records, errors of its disk and database,
and runs whose process was killed.
"""
