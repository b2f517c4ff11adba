"""Messages about long builds: a failure, no progress, done. [notify] of the configuration says who gets them.

    watch     what is told about one build      sending     the webhook and the command

A message never changes the result of a build. A build does not wait for the other side, except for a few seconds at its end.
"""
