"""Chat templates: conversations as a model expects them, and the tokens of the assistant among them.

templates: the text of a template --> rendering: text and marked places, in a child process (child)
                                  --> encoding: tokens and spans of tokens
"""
