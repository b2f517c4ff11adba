"""The document stream of a build: from the items of a source to tokens, splits and files.

    intake, feed --> shuffle --> encode --> decontaminate --> splits --> pretrain_writer, sft_spool      types: what they hand on
    held_out: what members of a mixture keep for val      val_index, disjoint: whether texts are in val

What the files are made with is in `disk`.
"""
