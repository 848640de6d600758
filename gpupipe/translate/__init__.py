"""Translation of known objects of torch, torchvision and timm.

gpupipe never imports torchvision. It recognizes objects by the module and the name of their class, so it runs without
torchvision, and with any version of it. No code of the script runs here.
"""
