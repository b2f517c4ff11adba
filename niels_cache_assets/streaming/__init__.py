"""The document stream of a build: from the items of a source to tokens, splits and files.

    intake, feed --> shuffle --> encode --> decontaminate --> splits --> pretrain_writer, sft_spool      types: what they exchange
    held_out: documents that members of a mixture keep for val      disjoint: whether train and val of a cache share texts

The package `disk` writes the files.
"""
