"""The document stream of a build: from the items of a source to tokens, splits and files.

    intake, feed --> shuffle --> encode --> decontaminate --> splits --> pretrain_writer, sft_spool      types: what they exchange
    held_out: documents that members of a mixture keep for val      val_index, disjoint: whether texts are in val

The package `disk` writes the files.
"""
