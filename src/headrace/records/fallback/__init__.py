"""The functions of the C extensions in Python, for machines without a compiler.

Pure, as all of `records`. Choose between both with `records.accelerator`.
"""
