"""The artifacts of a data set in parts, in build order: the plan, the val part, the parts, and the seal.

plan/NAME   val_part/NAME   part/NAME/part-00017   pretrain/NAME
"""
