"""The functions and classes that `import mtkd` offers; `mtkd/__init__.py` lists them."""
