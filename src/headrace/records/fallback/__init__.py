"""The functions of the C extensions in Python, for installations without a compiler.

Pure, as all of `records`, whose `accelerator` selects one of both.
"""
