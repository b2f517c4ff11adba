"""One module per group of assets; family.py holds what pretrain and sft share."""
