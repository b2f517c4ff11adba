"""Chat templates: conversations as a model expects them, and the tokens of the assistant among them.

templates: the text of a template --> rendering: text and spans of targets, in a child process
                                  --> encoding: tokens and spans of tokens

The child process has its own modules, which import none of the others: child --> targets --> compiled
"""
